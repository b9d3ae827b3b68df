package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// keep has a manager keep the certificate and the path, or follow those that
// somebody else keeps.
func (c *Certificates) keep(mgr ctrl.Manager, o Options, p Parts) error {
	c.tell, c.leader = p.Tell, p.Leader
	if o.selfManaged() {
		c.client, c.secret = mgr.GetClient(), types.NamespacedName{Namespace: p.Namespace, Name: webhookName}
		c.names = o.Names
		if len(c.names) == 0 {
			c.names = serviceNames(p.Namespace)
		}
		return c.register(mgr)
	}
	path := &folderWatcher{certificates: c, folder: o.CertDir}
	if err := path.look(context.Background()); err != nil {
		return err
	}
	watcher, err := certwatcher.New(filepath.Join(o.CertDir, keyCertificate), filepath.Join(o.CertDir, keyPrivate))
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	c.folder = watcher
	if err := errors.Join(mgr.Add(watcher), mgr.Add(&poller{what: "read the webhook's path", look: path.look})); err != nil || c.tell == nil {
		return err
	}
	t := &bundlePublisher{file: filepath.Join(o.CertDir, keyAuthorities), tell: c.tell, now: c.now}
	return mgr.Add(&poller{what: "tell agents who signs the mirror's certificate", look: t.look})
}

// serviceNames are those of the chart's Services, which the certificate is to
// bear.
func serviceNames(namespace string) []string {
	var names []string
	for _, service := range []string{webhookName, mirrorName} {
		name := service + "." + namespace + ".svc"
		names = append(names, name, name+".cluster.local")
	}
	return names
}

// poller looks again and again at a file that somebody else writes.
type poller struct {
	// what it does, for the log.
	what string
	look func(context.Context) error
}

// lookAgain is how often the file is read.
const lookAgain = 10 * time.Second

// NeedLeaderElection tells a manager to run it on every replica: each has the
// same file.
func (*poller) NeedLeaderElection() bool { return false }

// Start looks until ctx ends. What could not be done is done again.
func (l *poller) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := l.look(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, l.what)
		}
	}, lookAgain)
	return nil
}

// folderWatcher has the path served that lies in a folder.
type folderWatcher struct {
	certificates *Certificates
	folder       string
	// written is what the file says since then, before what it said until then.
	written, before []string
	since           time.Time
}

// look serves what the file says, and for a while what it said before: nobody
// knows who learns of a change first, the replica or the API server.
func (f *folderWatcher) look(context.Context) error {
	written, err := folderPath(f.folder)
	if err != nil {
		return err
	}
	now := f.certificates.now()
	if !slices.Equal(written, f.written) {
		f.before, f.written, f.since = f.written, written, now
	}
	served := written
	if now.Sub(f.since) < overlap {
		served = slices.Concat(written, f.before)
	}
	f.certificates.mu.Lock()
	defer f.certificates.mu.Unlock()
	f.certificates.paths = served
	return nil
}

// bundlePublisher has agents trust the authorities of a file that somebody else writes.
type bundlePublisher struct {
	file string
	tell func(ctx context.Context, authorities []byte) error
	now  func() time.Time
	// before are those that were told last, written what the file said then.
	before, written []byte
}

// look tells what the file says where that changed, and with it what it said
// before: a replica that was not told yet shows the older one.
func (t *bundlePublisher) look(ctx context.Context) error {
	written, err := os.ReadFile(t.file)
	if err != nil {
		return fmt.Errorf("read authorities: %w", err)
	}
	if bytes.Equal(written, t.written) {
		return nil
	}
	all := bundle(t.now(), written, t.before)
	if err := t.tell(ctx, all); err != nil {
		return err
	}
	t.before, t.written = all, written
	return nil
}
