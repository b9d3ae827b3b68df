package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	ctrl "sigs.k8s.io/controller-runtime"
)

// The bounds of what is logged of registries that could not be reached: how many are
// remembered, and how often one is logged with the same cause.
const (
	maxUnreachable   = 1024
	unreachableEvery = time.Minute
)

// unreachable logs why registries could not be reached, which statuses and answers do
// not say: whoever writes an application would learn what is where in the network.
type unreachable struct{ logged *cache.LRUExpireCache }

func newUnreachable() unreachable { return unreachable{cache.NewLRUExpireCache(maxUnreachable)} }

// log is registry.Options.Unreachable.
func (u unreachable) log(registry string, cause error) {
	key := [2]string{registry, cause.Error()}
	if _, known := u.logged.Get(key); known {
		return
	}
	u.logged.Add(key, nil, unreachableEvery)
	ctrl.Log.WithName("registries").Info("cannot reach registry", "registry", registry, "cause", cause.Error())
}
