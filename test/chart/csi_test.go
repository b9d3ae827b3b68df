package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestPodsGetMapsWhereThatIsAskedFor renders the chart with and without the plug-in.
func TestPodsGetMapsWhereThatIsAskedFor(t *testing.T) {
	for sentence, c := range map[string]struct {
		values []string
		folder string
	}{
		"not by default":                 {nil, ""},
		"nor by values of an older one":  {[]string{`csi=null`}, ""},
		"in the kubelet's folder":        {[]string{`csi.enabled=true`}, "/var/lib/kubelet"},
		"with pins":                      {[]string{`csi.enabled=true`, `csi.pins=true`}, "/var/lib/kubelet"},
		"for bpfman's pods":              {[]string{`csi.enabled=true`, `csi.pins=true`, `csi.bpfman=true`}, "/var/lib/kubelet"},
		"by values without pins":         {[]string{`csi.enabled=true`, `csi.pins=null`}, "/var/lib/kubelet"},
		"in another folder of a kubelet": {[]string{`csi.enabled=true`, `csi.kubeletDir="/var/lib/k0s/kubelet"`}, "/var/lib/k0s/kubelet"},
	} {
		t.Run(sentence, func(t *testing.T) {
			objects := setting{values: append(c.values, `openshift.enabled=true`)}.objects(t)
			spec := typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-agent").Spec.Template.Spec
			drivers := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "CSIDriver" })
			scc := one(t, objects, "SecurityContextConstraints", "skep-agent").Object
			volumes, _, _ := unstructured.NestedStringSlice(scc, "volumes")
			if on := c.folder != ""; (drivers >= 0) != on || scc["allowPrivilegedContainer"] != on || slices.Contains(volumes, "emptyDir") != on {
				t.Fatalf("a driver is at %d, and OpenShift allows %v", drivers, scc)
			}
			if c.folder == "" {
				if len(spec.Containers) != 1 || spec.AutomountServiceAccountToken != nil || strings.Contains(strings.Join(spec.Containers[0].Args, " "), "--mounter") {
					t.Errorf("the agent is %+v", spec)
				}
				return
			}
			var names []string
			for _, o := range objects {
				if o.GetKind() == "CSIDriver" {
					names = append(names, o.GetName())
				}
			}
			want := []string{"csi.skep.dev"}
			if slices.Contains(c.values, `csi.bpfman=true`) {
				want = []string{"csi.bpfman.io", "csi.skep.dev"}
			}
			slices.Sort(names)
			if !slices.Equal(names, want) || slices.Contains(spec.Containers[0].Args, "--volume-bpfman") != (len(want) == 2) {
				t.Errorf("the drivers are %q, and the agent's arguments %q", names, spec.Containers[0].Args)
			}
			driver := typed[storagev1.CSIDriver](t, objects, "CSIDriver", want[0]).Spec
			if !*driver.PodInfoOnMount || *driver.AttachRequired || *driver.FSGroupPolicy != storagev1.NoneFSGroupPolicy ||
				!slices.Equal(driver.VolumeLifecycleModes, []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}) {
				t.Errorf("the driver is %+v", driver)
			}
			agent, mounter := spec.Containers[0], spec.Containers[1]
			if *agent.SecurityContext.Privileged || !*mounter.SecurityContext.Privileged || *spec.AutomountServiceAccountToken {
				t.Error("the agent is privileged, or the mounter is not, or has a token")
			}
			both := corev1.MountPropagationBidirectional
			mounts := []corev1.VolumeMount{{Name: "mounter", MountPath: "/run/skep-mounter"},
				{Name: "pods", MountPath: c.folder + "/pods", MountPropagation: &both}}
			if diff := cmp.Diff(mounts, mounter.VolumeMounts); diff != "" {
				t.Errorf("the mounter has (-want +got):\n%s", diff)
			}
			pins := fmt.Sprint(slices.Contains(c.values, `csi.pins=true`))
			if !slices.Contains(mounter.Args, "--pins="+pins) || !slices.Contains(agent.Args, "--volume-pins="+pins) {
				t.Errorf("with pins %s, their arguments are %q and %q", pins, mounter.Args, agent.Args)
			}
			if !slices.Contains(mounter.Args, "--pods="+c.folder+"/pods") || !slices.Contains(agent.Args, "--kubelet-dir="+c.folder) {
				t.Errorf("their arguments are %q and %q", mounter.Args, agent.Args)
			}
			for _, folder := range []string{"/plugins/csi.skep.dev", "/plugins_registry"} {
				isMount := func(m corev1.VolumeMount) bool { return m.MountPath == c.folder+folder }
				isVolume := func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == c.folder+folder }
				if !slices.ContainsFunc(agent.VolumeMounts, isMount) || !slices.ContainsFunc(spec.Volumes, isVolume) {
					t.Errorf("the agent has no %s: %v", folder, agent.VolumeMounts)
				}
			}
		})
	}
}
