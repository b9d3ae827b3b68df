package admission

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// keep has a manager keep the certificate, or follow the one that somebody else
// keeps.
func (c *Certificates) keep(mgr ctrl.Manager, o Options, p Parts) error {
	c.tell = p.Tell
	if o.selfManaged() {
		c.client, c.secret = mgr.GetClient(), types.NamespacedName{Namespace: p.Namespace, Name: webhookName}
		c.names = o.Names
		if len(c.names) == 0 {
			c.names = serviceNames(p.Namespace)
		}
		return c.register(mgr)
	}
	watcher, err := certwatcher.New(filepath.Join(o.CertDir, keyCertificate), filepath.Join(o.CertDir, keyPrivate))
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	c.folder = watcher
	if err := mgr.Add(watcher); err != nil || c.tell == nil {
		return err
	}
	return mgr.Add(&teller{file: filepath.Join(o.CertDir, keyAuthorities), tell: c.tell, now: c.now})
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

// teller has agents trust the authorities of a file that somebody else writes.
type teller struct {
	file string
	tell func(ctx context.Context, authorities []byte) error
	now  func() time.Time
	// before are those that were told last, written what the file said then.
	before, written []byte
}

// lookAgain is how often the file is read.
const lookAgain = 10 * time.Second

// NeedLeaderElection tells a manager to run it on every replica: each has the
// same file.
func (t *teller) NeedLeaderElection() bool { return false }

// Start tells until ctx ends. What could not be told is told again.
func (t *teller) Start(ctx context.Context) error {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if err := t.look(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "tell agents who signs the mirror's certificate")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look tells what the file says where that changed, and with it what it said
// before: a replica that was not told yet shows the older one.
func (t *teller) look(ctx context.Context) error {
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
