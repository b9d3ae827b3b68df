package imagestore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/limit"
)

// users are the tenants that use something, by its name.
type users map[string]map[string]bool

// ofCluster is the tenant of applications of the cluster. No namespace has its name; nor
// has the empty one, which is the tenant of what no application uses.
const ofCluster = "(cluster)"

// tenantOf is whom it counts for what an application uses.
func tenantOf(id v1alpha1.Identity) string { return cmp.Or(id.Namespace, ofCluster) }

// add has a tenant use something.
func (u users) add(name, tenant string) {
	if u[name] == nil {
		u[name] = map[string]bool{}
	}
	u[name][tenant] = true
}

// charged returns the tenant whom something counts for: of those that use it the one that
// uses the fewest, so that a tenant that uses what others do takes nothing from them.
func (u users) charged() func(name string) string {
	uses := map[string]int{}
	for _, tenants := range u {
		for tenant := range tenants {
			uses[tenant]++
		}
	}
	return func(name string) (charged string) {
		for tenant := range u[name] {
			if charged == "" || cmp.Or(cmp.Compare(uses[tenant], uses[charged]), strings.Compare(tenant, charged)) < 0 {
				charged = tenant
			}
		}
		return charged
	}
}

// admit has others give way to an image where there is no room for it as it is to be
// written for a tenant: the oldest of the tenant that has most. It reports whether there
// is room; where there is none, registries are asked about the image each time.
func (m *Memory) admit(ctx context.Context, now *v1alpha1.BpfImage, by string) (bool, error) {
	var list v1alpha1.BpfImageList
	if err := m.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return false, err
	}
	all, bytes := []*v1alpha1.BpfImage{now}, held(now)
	for i := range list.Items {
		if o := &list.Items[i]; o.Name != now.Name {
			all, bytes = append(all, o), bytes+held(o)
		}
	}
	mostImages, mostBytes := cmp.Or(m.MaxImages, 4096), cmp.Or(m.MaxBytes, 256<<20)
	if len(all) <= mostImages && bytes <= mostBytes {
		return true, nil
	}
	if !m.evicts() {
		m.forget(now.Name)
		return false, nil
	}
	digests, err := used(ctx, m.Client)
	if err != nil {
		return false, err
	}
	if by != "" {
		digests.add(digestOf(now.Name), by)
	}
	charged := digests.charged()
	slices.SortStableFunc(all[1:], func(a, b *v1alpha1.BpfImage) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	kept, many := limit.Fit(all, mostImages, func(o *v1alpha1.BpfImage) (string, int) { return charged(digestOf(o.Name)), 1 })
	_, large := limit.Fit(kept, mostBytes, func(o *v1alpha1.BpfImage) (string, int) { return charged(digestOf(o.Name)), held(o) })
	return m.drop(ctx, now, append(many, large...), func(o *v1alpha1.BpfImage) string { return charged(digestOf(o.Name)) })
}

// evicts reports whether images may give way now: once a second, and a few times at once.
// Whoever has ever new images evaluated has no more written by it.
func (m *Memory) evicts() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.evictions == nil {
		m.evictions = rate.NewLimiter(rate.Every(evictEvery), evictAtOnce)
	}
	return m.evictions.Allow()
}

// How often images give way to others, and how often at once after quiet.
const (
	evictEvery  = time.Second
	evictAtOnce = 64
)

// between is how far apart log lines are that say that images gave way.
const between = 10 * time.Minute

// drop deletes the images that give way, unless the one for which room is made is one of
// them: then it reports false, and nothing is deleted.
func (m *Memory) drop(ctx context.Context, now *v1alpha1.BpfImage, lost []*v1alpha1.BpfImage, charged func(*v1alpha1.BpfImage) string) (bool, error) {
	ok := !slices.Contains(lost, now)
	if !ok {
		lost = []*v1alpha1.BpfImage{now}
	}
	m.logDropped(lost, charged)
	for _, o := range lost {
		m.forget(o.Name)
		if o == now {
			continue
		}
		if err := client.IgnoreNotFound(m.Client.Delete(ctx, o.DeepCopy())); err != nil {
			return false, fmt.Errorf("drop %s: %w", o.Name, err)
		}
	}
	return ok, nil
}

// forget has an image that is not remembered looked at and described again.
func (m *Memory) forget(object string) {
	m.undescribed(object)
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.settled, func(as string, _ bool) bool { return strings.HasPrefix(as, digestOf(object)+" ") })
}

// logDropped logs now and then that images are not remembered, and whose they are.
func (m *Memory) logDropped(lost []*v1alpha1.BpfImage, charged func(*v1alpha1.BpfImage) string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crowded.First, m.crowded.Interval = 1, between
	m.crowded.Do(func() {
		tenants := map[string]int{}
		for _, o := range lost {
			tenants[cmp.Or(charged(o), "(used by no application)")]++
		}
		ctrl.Log.WithName("images").Info("there are as many BpfImages as may be: those of the namespaces with most give way, "+
			"and registries are asked about them again", "namespaces", tenants)
	})
}

// placesOf returns the tenant whom what is kept of an image counts for, by its name:
// what is kept of one repository counts for those that use the image from there.
func (m *Memory) placesOf(ctx context.Context, object string) (charged func(kept string) string) {
	places := users{}
	// Where that cannot be listed, nobody has more than another.
	_ = eachApplication(ctx, m.Client, func(app v1alpha1.Application) {
		digest := digestOf(object)
		if report := app.Report(); report.Digest != digest && report.PreviousDigest != digest {
			return
		}
		if r, err := image.Named(app.Body().Bytecode.Image); err == nil {
			places.add(repositoryOf(r), tenantOf(app.Identity()))
		}
	})
	of := places.charged()
	return func(kept string) string {
		_, repository, _ := strings.Cut(kept, ".")
		return of(repository)
	}
}

// makeRoom drops what is kept beside the newest until all is within bounds: an image that
// many repositories hold must not outgrow its object. The tenant that has most gives way,
// and of what it has images before signatures, which nobody has but the registry.
func makeRoom(memory map[string][]byte, newest string, charged func(kept string) string) {
	names := make([]string, 0, len(memory))
	for name := range memory {
		names = append(names, name)
	}
	// "image." sorts before "signatures.".
	slices.SortFunc(names, func(a, b string) int {
		if a == newest || b == newest {
			return map[bool]int{true: -1, false: 1}[a == newest]
		}
		return strings.Compare(b, a)
	})
	kept, many := limit.Fit(names, maxKept, func(name string) (string, int) { return charged(name), 1 })
	_, large := limit.Fit(kept, maxTogether, func(name string) (string, int) { return charged(name), len(memory[name]) })
	for _, name := range append(many, large...) {
		delete(memory, name)
	}
}
