package aggregated

import (
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/skep-dev/skep/intent/noderequest"
)

// Limits are how much users may ask for. What is beyond is answered 429.
type Limits struct {
	// What is what is asked for, as in: reads of maps.
	What string
	// A user, or the service accounts of a namespace together, may begin Burst requests at once and PerSecond more each second, and have OfUser on their way.
	Burst, PerSecond, OfUser int
	// OfAll is how many of all users are on their way, of which OfLasting may last: others keep places.
	OfAll, OfLasting int
}

// maxUsers is how many users' rates are remembered.
const maxUsers = 4096

// Bounds holds users to Limits. It is safe for concurrent use.
type Bounds struct {
	limits Limits
	users  *cache.LRUExpireCache

	mu sync.Mutex
	// under counts the requests on their way, by noderequest.ShareOf.
	under        map[string]int
	all, lasting int
}

// NewBounds returns Bounds.
func NewBounds(l Limits) *Bounds {
	return &Bounds{limits: l, users: cache.NewLRUExpireCache(maxUsers), under: map[string]int{}}
}

// Enter counts a request of a user, until leave is called, or rejects it.
func (b *Bounds) Enter(user string, lasts bool) (leave func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lasting, l, name := 0, b.limits, noderequest.ShareOf(user)
	if lasts {
		lasting = 1
	}
	own, ok := b.users.Get(name)
	if !ok {
		own = rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst)
		b.users.Add(name, own, time.Hour)
	}
	switch {
	case !own.(*rate.Limiter).Allow():
		return nil, noderequest.Fail(http.StatusTooManyRequests, "%s may begin %d %s a second; try again in a few seconds", name, l.PerSecond, l.What)
	case b.under[name] >= l.OfUser:
		return nil, noderequest.Fail(http.StatusTooManyRequests, "%s may have %d %s on their way at once; end one", name, l.OfUser, l.What)
	case b.all >= l.OfAll:
		return nil, noderequest.Fail(http.StatusTooManyRequests, "%d %s are on their way, and no more are allowed at once; try again later", l.OfAll, l.What)
	case lasts && b.lasting >= l.OfLasting:
		return nil, noderequest.Fail(http.StatusTooManyRequests, "%d watches among %s are on their way, and no more are allowed at once; try again later",
			l.OfLasting, l.What)
	}
	b.under[name]++
	b.all++
	b.lasting += lasting
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.all--
		b.lasting -= lasting
		if b.under[name]--; b.under[name] == 0 {
			delete(b.under, name)
		}
	}, nil
}
