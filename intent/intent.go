// Package intent is the verdict as agents get it: the payload, its DSSE
// envelope, and the two ways through the seal.
//
// Seal is called by package gate alone (test/arch holds that), Open by agents.
// Opened cannot be made any other way, so an agent that takes an Opened cannot
// be handed something nobody sealed. The package fetches nothing and decides
// nothing.
package intent

import (
	"cmp"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// FormatVersion is the version of Payload. An agent that meets a version it
// does not know keeps what runs.
const FormatVersion = 1

// PayloadType is the DSSE payload type of a sealed intent.
const PayloadType = "application/vnd.skep.intent+json"

// Payload is what one application is to be on every selected node.
type Payload struct {
	// Format is FormatVersion.
	Format int `json:"format"`
	// Application and UID name what the intent speaks of. A serial counts for
	// one UID.
	Application v1alpha1.Identity `json:"application"`
	UID         string            `json:"uid"`
	// Serial is max(last + 1, unix milliseconds). An older envelope is rejected.
	Serial int64 `json:"serial"`
	// Created is when the application was created, in unix milliseconds: in a
	// cluster as the API server recorded it, in node mode when its first intent was
	// sealed. No author chooses it. 0 in intents that were sealed before there was
	// this field; see CreatedAt.
	Created int64 `json:"created,omitempty"`
	// Tombstone says that the application is to be unloaded. All below is then
	// empty, but for Reason.
	Tombstone bool `json:"tombstone,omitempty"`
	// Reason says why the tombstone was sealed.
	Reason string `json:"reason,omitempty"`
	// Generation is a hash of what the definition asks nodes for; see
	// gate.Generation. A tag is resolved once per generation.
	Generation int64 `json:"generation,omitempty"`
	// Source says where the definition stands: a file in the source in node
	// mode, empty in a cluster.
	Source string `json:"source,omitempty"`
	// Image is the reference as written, ImageDigest what it resolved to.
	Image       string `json:"image,omitempty"`
	ImageDigest string `json:"imageDigest,omitempty"`
	// ObjectDigest is the sha256 of the object file itself, as sha256:…; the
	// agent hashes what it fetched against it.
	ObjectDigest string `json:"objectDigest,omitempty"`
	// NodeSelector, Variables, Maps, Programs and Alternatives are the definition's, with
	// the hook, target and priority of every attachment filled in.
	NodeSelector *metav1.LabelSelector           `json:"nodeSelector,omitempty"`
	Variables    map[string]apiextensionsv1.JSON `json:"variables,omitempty"`
	Maps         map[string]v1alpha1.Map         `json:"maps,omitempty"`
	Programs     []v1alpha1.Program              `json:"programs,omitempty"`
	Alternatives []v1alpha1.Alternative          `json:"alternatives,omitempty"`
	// Facts are those of the programs by which the version was allowed. Nil in intents that were
	// sealed before there was this field.
	Facts *Facts `json:"facts,omitempty"`
	// Grant is what admins grant the applications of the namespace, at the time of sealing. Nil where they grant nothing.
	Grant *Grant `json:"grant,omitempty"`
	// Signers, SignedAt and PolicyRevision record what the verdict rested on.
	Signers []string `json:"signers,omitempty"`
	// SignedAt has the trusted times of those of Signers that have one, in unix
	// seconds: a revocation from a time on acts by it.
	SignedAt       map[string]int64 `json:"signedAt,omitempty"`
	PolicyRevision string           `json:"policyRevision,omitempty"`
	// Evidence is where the signatures and attestations are by which the version was allowed.
	// It is sealed next to the payload, is no part of a format, and agents have none of it; see
	// Opened.WithEvidence.
	Evidence []Artifact `json:"-"`
	// Version is the serial under which this version was first sealed, by which
	// nodes answer; 0 where it is Serial. See VersionSerial.
	Version int64 `json:"version,omitempty"`
	// Rollout is how far this version has come; nil where every node is to have
	// it.
	Rollout *Rollout `json:"rollout,omitempty"`
	// Previous is the version before, the last that came to every node: those that
	// the rollout has not come to hold it, those that cannot have this one go back to
	// it, and an undo brings it back. Nil where there is none that may run.
	Previous *Payload `json:"previous,omitempty"`
	// Withdrawn are versions that nodes may run still and that none is to have: they
	// were undone, reverted or overtaken, or are those that nodes stayed with which
	// could not have a later one. A node that runs one of them, and cannot have what
	// it is to, goes on with it; none is loaded anew. Neither they nor Previous have
	// a Rollout or versions beside them.
	Withdrawn []Payload `json:"withdrawn,omitempty"`
	// Undone is the Generation of the definition that was undone: what is sealed
	// here is the version before it.
	Undone int64 `json:"undone,omitempty"`
}

// Facts are what programs of an object do, as far as a load may change it: it relocates
// instructions for the kernel of a node (CO-RE). An agent loads no program that does more. They are
// no part of a version: nodes that run one load nothing when others are sealed.
type Facts struct {
	// Calls are the helpers, kfuncs and variables of the kernel that any of the programs uses, and which
	// further facts Reads has; see bytecode.Seal.
	Calls []string `json:"calls,omitempty"`
	// Reads are the ways in which each program reads memory of the kernel, its own calls, and further facts
	// that it has, by its name. Agents ignore a name that they do not know.
	Reads map[string][]string `json:"reads,omitempty"`
}

// Grant is what applications of a namespace may have together beyond the settings of a node. It is no part of a version, and holds
// for all versions of an intent.
type Grant struct {
	// TargetPrograms is how many programs they may have at one target that tasks of others run, too, and TextPages in how many
	// pages of one file's text they may have probes; 0 grants nothing.
	TargetPrograms int `json:"targetPrograms,omitempty"`
	TextPages      int `json:"textPages,omitempty"`
}

// Signed has the trusted time of each of Signers, zero where it has none.
func (p *Payload) Signed() map[string]time.Time {
	all := map[string]time.Time{}
	for _, name := range p.Signers {
		all[name] = time.Time{}
		if at, trusted := p.SignedAt[name]; trusted {
			all[name] = time.Unix(at, 0).UTC()
		}
	}
	return all
}

// CreatedAt is when the application was created, in unix milliseconds, as far as
// the intent says: it was there when its version was first sealed.
func (p *Payload) CreatedAt() int64 { return cmp.Or(p.Created, p.VersionSerial()) }
