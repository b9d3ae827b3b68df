// Package sysdump gathers what a bug report needs of a host or a cluster, in one archive of bounded size, as the caller. It changes
// nothing, and must not put secrets, values of variables or contents of maps into it: allowed.txt lists what may be there.
package sysdump

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
)

// stepTime is how long one step may take.
const stepTime = 30 * time.Second

// step reads a part.
type step struct {
	// name is for people.
	name string
	run  func(context.Context)
}

// New returns skep sysdump.
func New() *cobra.Command {
	var (
		f        where.Flags
		file     string
		policies bool
	)
	cmd := &cobra.Command{
		Use:   "sysdump",
		Short: "Write what a bug report needs to an archive, without secrets, values of variables and contents of maps",
		Long: "Write an archive for a bug report.\n\n" +
			"It reads this host or a cluster, as the caller. The archive has a README of its files, and a MANIFEST that names what\n" +
			"could not be read and the right that is missing. It has at most 64 MiB, and 4 MiB in a file.\n\n" +
			"Names stay: those of applications, nodes, namespaces, images and signers, with labels, addresses of pods and logs of\n" +
			"Skep. Look through it before you publish it.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			isCluster, err := f.Cluster(cmd)
			if errors.Is(err, where.ErrNowhere) {
				// A skep run that does not start is what a report may be about: the kernel is described.
				err = nil
				where.Say(cmd, "", "neither skep run nor a kubeconfig is there; the archive describes the kernel of this host")
			}
			if err != nil {
				return err
			}
			r := request{where: &f, file: file, policies: policies, cluster: isCluster, now: time.Now().UTC()}
			return r.make(cmd)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write (default skep-sysdump-TIME.tar.gz in the current folder)")
	cmd.Flags().BoolVar(&policies, "include-policies", false, "add Rego and parameters of policies, which tell what is forbidden and for whom")
	f.Register(cmd)
	return cmd
}

// request is what a caller wants.
type request struct {
	where             *where.Flags
	file              string
	policies, cluster bool
	now               time.Time
}

// make writes the archive and says where it is.
func (r request) make(cmd *cobra.Command) error {
	folder := "skep-sysdump-" + r.now.Format("20060102T150405Z")
	path := cmp.Or(r.file, folder+".tar.gz")
	var client *cluster.Client
	if r.cluster {
		var err error
		if client, err = cluster.Open(&r.where.Kube, cmd.ErrOrStderr()); err != nil {
			return err
		}
		// A cluster that is away, or takes no credentials of the caller's, has nothing to report.
		if _, err := client.Version(cmd.Context()); err != nil && !cluster.IsForbidden(err) {
			return fmt.Errorf("sysdump: %w", err)
		}
	}
	var a *archive
	err := write(cmd, path, func(out *os.File) error {
		a = newArchive(out, folder, r.now)
		d := &dump{archive: a, policies: r.policies}
		steps := hostSteps(d, host.Client{State: r.where.State})
		if client != nil {
			steps = clusterSteps(d, client)
		}
		if err := d.run(cmd, steps); err != nil {
			return err
		}
		return a.close()
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s; look through the archive before you publish it\n", display.Count(a.files, "file"))
	if a.missing > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s could not be read; MANIFEST.txt says why\n", display.Count(a.missing, "part"))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
	return err
}

// write makes a file that only its owner reads. Nothing is left of it after an error.
func write(cmd *cobra.Command, path string, fill func(*os.File) error) error {
	out, err := os.OpenFile(filepath.Clean(path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("sysdump: %s exists and is not overwritten: name another file by -o", path)
	}
	if err != nil {
		return fmt.Errorf("sysdump: %w", err)
	}
	err = errors.Join(fill(out), out.Close())
	if err == nil {
		err = cmd.Context().Err()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("sysdump: %w", err), os.Remove(path))
	}
	return nil
}

// dump is one archive that is made.
type dump struct {
	*archive
	scrubber

	// policies adds rules and parameters.
	policies bool
}

// run runs the steps, each within its time.
func (d *dump) run(cmd *cobra.Command, steps []step) error {
	progress := display.Begin(cmd)
	defer progress.Done()
	d.json("versions.json", map[string]any{"skep": version.This(), "time": d.now, "command": cmd.CommandPath()})
	for _, s := range steps {
		progress.Step("reading %s", s.name)
		ctx, cancel := context.WithTimeout(cmd.Context(), stepTime)
		s.run(ctx)
		cancel()
		if err := cmd.Context().Err(); err != nil {
			return err
		}
	}
	if d.full {
		d.lack("texts", fmt.Errorf("variables and maps have more than %d bytes: texts were scrubbed of the first ones", maxSecrets))
	}
	return nil
}

// typed adds a value of a type of Skep's own, which holds no secrets, with texts scrubbed; or notes why it could not be read.
func (d *dump) typed(file string, value any, err error) {
	var plain any
	if err == nil {
		plain, err = generic(value)
	}
	if err != nil {
		d.lack(file, err)
		return
	}
	d.json(file, (&shape{how: asAll}).redact(plain, d.text))
}
