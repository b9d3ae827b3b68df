package csi

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/skepmap"
)

// Driver is a name by which pods ask for volumes, and the attributes by which they do.
type Driver struct {
	Name string
	// socket is the plug-in's, in its folder.
	socket string
	// attributes are those that a pod's author may write, and ask adds to a claim what they ask for.
	attributes []string
	ask        func(c *volumes.Claim, attributes map[string]string) error
}

// The drivers. Their volumes are the same, but that those of Bpfman have the maps that they name, and none besides.
var (
	Skep   = Driver{"csi.skep.dev", "csi.sock", []string{ofNamespace, ofCluster}, askSkep}
	Bpfman = Driver{"csi.bpfman.io", "csi.bpfman.io.sock", []string{ofProgram, ofMaps}, askBpfman}
)

// What the kubelet adds to the attributes that a pod's author wrote (podInfoOnMount). It replaces theirs of the same keys.
const (
	info          = "csi.storage.k8s.io/"
	infoPod       = info + "pod.name"
	infoNamespace = info + "pod.namespace"
	infoUID       = info + "pod.uid"
	infoAccount   = info + "serviceAccount.name"
	infoEphemeral = info + "ephemeral"
)

// What a pod's author writes.
const (
	ofNamespace       = "application"
	ofCluster         = "clusterApplication"
	ofProgram         = "csi.bpfman.io/program"
	ofMaps            = "csi.bpfman.io/maps"
	fieldOfAttributes = "spec.volumes[].csi.volumeAttributes"
)

// maxName is the most characters of an object's name, and maxMaps of the names of maps, which the record of a volume has.
const (
	maxName = 253
	maxMaps = 2048
)

// claim is whose volume it is, and of which application.
func (d Driver) claim(attributes map[string]string, uid string) (volumes.Claim, error) {
	known := append([]string{infoPod, infoNamespace, infoUID, infoAccount, infoEphemeral}, d.attributes...)
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		if !slices.Contains(known, key) {
			return volumes.Claim{}, fmt.Errorf("%s has %q; only %s are known: remove it", fieldOfAttributes, key, strings.Join(d.attributes, " or "))
		}
	}
	c := volumes.Claim{Namespace: attributes[infoNamespace], Pod: attributes[infoPod], ServiceAccount: attributes[infoAccount]}
	switch {
	case c.Namespace == "" || c.Pod == "" || attributes[infoUID] != uid:
		// Without podInfoOnMount, these would be the author's, who cannot know the UID.
		return c, fmt.Errorf("the kubelet does not say which pod it is: the CSIDriver %s needs podInfoOnMount: true; install the chart's", d.Name)
	case attributes[infoEphemeral] != strconv.FormatBool(true):
		return c, fmt.Errorf("%s has ephemeral volumes alone; write the volume into the pod (spec.volumes[].csi), without a PersistentVolume", d.Name)
	}
	if err := d.ask(&c, attributes); err != nil {
		return c, err
	}
	if len(c.Application.Name) > maxName {
		return c, fmt.Errorf("%s has a name of %d characters; at most %d are allowed", fieldOfAttributes, len(c.Application.Name), maxName)
	}
	return c, nil
}

// askSkep asks for all maps that are granted of an application, of the namespace or of the cluster.
func askSkep(c *volumes.Claim, attributes map[string]string) error {
	own, cluster := attributes[ofNamespace], attributes[ofCluster]
	switch {
	case own == "" && cluster == "":
		return fmt.Errorf("%s names no application; set %s to a BpfApplication of the pod's namespace, or %s to a ClusterBpfApplication",
			fieldOfAttributes, ofNamespace, ofCluster)
	case own != "" && cluster != "":
		return fmt.Errorf("%s has both %s and %s; a volume is of one: remove the other", fieldOfAttributes, ofNamespace, ofCluster)
	case own != "":
		c.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: c.Namespace, Name: own}
	default:
		c.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: cluster}
	}
	return nil
}

// askBpfman asks for the maps that are named, of a ClusterBpfApplication: a name has one meaning, whatever a namespace has.
func askBpfman(c *volumes.Claim, attributes map[string]string) error {
	program, text := attributes[ofProgram], attributes[ofMaps]
	if program == "" {
		return fmt.Errorf("%s names no application; set %s to a ClusterBpfApplication", fieldOfAttributes, ofProgram)
	}
	if len(text) > maxMaps {
		return fmt.Errorf("%s has %d characters in %s; at most %d are allowed", fieldOfAttributes, len(text), ofMaps, maxMaps)
	}
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if err := skepmap.CheckName(name); err != nil {
			return fmt.Errorf("%s: %s: %w", fieldOfAttributes, ofMaps, err)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return errors.New(fieldOfAttributes + " names no map; list them in " + ofMaps + ", with a comma between them")
	}
	slices.Sort(names)
	c.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: program}
	c.Maps = strings.Join(slices.Compact(names), ",")
	return nil
}
