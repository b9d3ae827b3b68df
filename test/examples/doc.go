// Package examples holds the project's examples to what their pages promise:
// every definition passes the whole gate with its own policy and the baseline,
// and the policy rejects what it is there to reject.
//
// It owns no case of the gate itself and loads nothing into the kernel.
package examples
