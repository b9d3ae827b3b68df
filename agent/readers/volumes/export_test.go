package volumes

import "github.com/cilium/ebpf"

// Check is check, with the defaults where a bound is not given.
func (b Bounds) Check(namespace string, has, all int) error {
	return b.orDefaults().check(namespace, has, all)
}

// Asking is how many requests to the mounter wait for an answer, but for withdrawals.
func (k *Keeper) Asking() int { return len(k.asks) }

// IsLoaded is what the server of sockets asks of maps that readers hold.
func (k *Keeper) IsLoaded(id ebpf.MapID) bool { return k.isLoaded(id) }
