// Package integration runs the controller and the agents against a real
// kube-apiserver, a real registry and the real kernel.
//
// It has tests alone, and reaches what it tests through the API server, as
// users do.
package integration
