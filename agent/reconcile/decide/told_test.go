package decide_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// TestWhatTheKernelSaysOfAChainIsOfAllItsPrograms: the one at fault reads its own name and the rule, and what the kernel says only
// where no program of another namespace can be meant.
func TestWhatTheKernelSaysOfAChainIsOfAllItsPrograms(t *testing.T) {
	key := seals.New(t)
	mine, others := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "alpha", Name: "mine"},
		v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "beta", Name: "secret"}
	cluster := v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "firewall"}
	states := func(ids ...v1alpha1.Identity) []*decide.Application {
		r := &accepted.Round{}
		for _, id := range ids {
			r.Applications = append(r.Applications, &accepted.Application{Application: decide.Application{Known: version.Known{Newest: key.Open(t, intent.Payload{
				Application: id, UID: id.Name, Serial: 1, ObjectDigest: "sha256:object",
				Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: "xdp"}}}}})}}})
		}
		return r.States()
	}
	d := decide.New(decide.Options{Look: (&live.Set{}).Look(), Applications: states(mine, others, cluster)})
	rejects := func(at v1alpha1.Identity, beside ...v1alpha1.Identity) error {
		parts := []build.Part{{Key: "at fault", Member: plan.Member{Identity: at}}}
		for _, id := range beside {
			parts = append(parts, build.Part{Key: id.String(), Member: plan.Member{Identity: id}})
		}
		return build.Explain(parts, &chain.Rejection{Member: "at fault", Limit: chain.LimitVerifier, Reason: "rejected", Fix: "mend it",
			Err: &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"; return secret();", "func secret() is bad"}}})
	}
	ofOthers := []build.Part{{Member: plan.Member{Identity: others}}}
	const whole, own = "secret() is bad", `link "at fault" into chain: verifier: rejected; mend it: permission denied`
	for sentence, c := range map[string]struct {
		uid  string
		err  error
		want string
	}{
		"its own program, and no other":        {"mine", rejects(mine), whole},
		"its own program beside another's":     {"mine", rejects(mine, others), own},
		"its own program beside the cluster's": {"mine", rejects(mine, cluster), own},
		"another's":                            {"mine", rejects(others, mine), "cannot be made with a program of an application of another namespace; "},
		"the cluster's":                        {"mine", rejects(cluster, mine), "cannot be made with a program of a ClusterBpfApplication; "},
		"to an administrator":                  {"firewall", rejects(others, mine, cluster), whole},
		"to one that is not known":             {"orphan", rejects(others, mine), "cannot be made with a program of another application; "},
		"no memory":                            {"mine", build.Explain(ofOthers, unix.ENOMEM), "load chain: cannot allocate memory"},
		"of no known cause":                    {"mine", build.Explain(ofOthers, errors.New("secret")), "a program of another application; "},
		"no chain's":                           {"mine", errors.New("the interface is gone"), "the interface is gone"},
	} {
		t.Run(sentence, func(t *testing.T) {
			got := decide.Told(d, c.uid, c.err)
			if !strings.Contains(got.Error(), c.want) || c.want != whole && strings.Contains(got.Error(), "secret") {
				t.Errorf("it reads %q, want %q", got, c.want)
			}
			if c.want == own && got.Error() != own {
				t.Errorf("it reads %q, want %q", got, own)
			}
			if !errors.Is(got, c.err) {
				t.Error("the cause is lost")
			}
		})
	}
}
