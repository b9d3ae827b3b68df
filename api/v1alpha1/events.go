package v1alpha1

// ReasonRegistryUnreachable is the reason of an event in Skep's own namespace, whose note is the registry, ": " and the cause.
const ReasonRegistryUnreachable = "RegistryUnreachable"
