package kube

// NamespaceLabels is what the agent underneath asks.
func (a *Agent) NamespaceLabels(namespace string) (map[string]string, bool) {
	return a.namespaces.labels(namespace)
}
