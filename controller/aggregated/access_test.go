package aggregated

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// allows is an API server that lets all users.
type allows struct{ client.Client }

// Create implements client.Client.
func (allows) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	o.(*authorizationv1.SubjectAccessReview).Status.Allowed = true
	return nil
}

func TestWhatIsRememberedOfUsersIsSmallHoweverManyGroupsTheyHave(t *testing.T) {
	inUse := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	r := NewReviews(allows{}, time.Hour)
	who := &user.DefaultInfo{Name: "ann", Groups: []string{strings.Repeat("g", 50<<10)}}
	before := inUse()
	for i := range 1000 {
		if err := r.Check(t.Context(), who, authorizationv1.ResourceAttributes{Name: fmt.Sprint(i)}, ""); err != nil {
			t.Fatal(err)
		}
	}
	// Each is remembered.
	if more := int64(inUse()) - int64(before); more > 8<<20 {
		t.Errorf("1000 answers take %d bytes", more)
	}
	runtime.KeepAlive(r)
}
