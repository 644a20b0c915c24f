"""Public scaling policies, each as its own documents define it."""
