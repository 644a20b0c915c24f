{{- define "harmony.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "harmony.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "harmony.labels" -}}
{{ include "harmony.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: harmony
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "harmony.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}
{{- end -}}

{{- define "harmony.tokenSecret" -}}
{{ .Values.metricsToken.existingSecret | default (printf "%s-metrics" (include "harmony.fullname" .)) }}
{{- end -}}

{{/* Of every pod: no root, no rights, no variables that Kubernetes makes of Services, which the settings would refuse. */}}
{{- define "harmony.pod" -}}
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "harmony.container" -}}
image: {{ include "harmony.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "harmony.env" -}}
- name: HARMONY_CONFIG
  value: /etc/harmony/harmony.yaml
- name: HARMONY_WEB_HOST
  value: 0.0.0.0
- name: HARMONY_STATE_DIR
  value: /var/lib/harmony
- name: NUMBA_CACHE_DIR
  value: /tmp/compiled
- name: HARMONY_ADVANCED__WORKER__METRICS_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ include "harmony.tokenSecret" . }}, key: {{ .Values.metricsToken.key }}}
{{- end -}}

{{- define "harmony.mounts" -}}
- {name: settings, mountPath: /etc/harmony, readOnly: true}
- {name: state, mountPath: /var/lib/harmony}
- {name: tmp, mountPath: /tmp}
{{- if .Values.kafka.existingSecret }}
- {name: kafka, mountPath: /etc/harmony-kafka, readOnly: true}
{{- end }}
{{- end -}}

{{/* All but `state`, which differs; `settings` names the ConfigMap. */}}
{{- define "harmony.volumes" -}}
- name: settings
  configMap: {name: {{ .settings }}}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- with .Values.kafka.existingSecret }}
- name: kafka
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}
