package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What a node is configured with. %STATE% is the node's folder.

// containerdConfig is that of the version of containerd which runs.
func containerdConfig(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(runtimeFolder), "containerd"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the runtime is %s", out)
	if strings.Contains(string(out), " 1.") {
		return containerd1Config
	}
	return containerd2Config
}

const containerd1Config = `version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.example.com/pause:1"
  registry.config_path = "%STATE%/certs.d"
  # Without CAP_SYS_RESOURCE nobody may lower what he was given.
  restrict_oom_score_adj = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%STATE%/cni"
`

const containerd2Config = `version = 3
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.cri.v1.images"]
  pinned_images.sandbox = "registry.example.com/pause:1"
  registry.config_path = "%STATE%/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE nobody may lower what he was given.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "%STATE%/cni"
`

// dockerHub has the node's registry stand for Docker's.
const dockerHub = `[host."https://registry.example.com"]
  capabilities = ["pull", "resolve"]
`

const cniConfig = `{"cniVersion": "0.4.0", "name": "node", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /skep-e2e
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
maxOpenFiles: 20000
protectKernelDefaults: true
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %STATE%/pki/ca.crt}}
authorization: {mode: Webhook}
clusterDomain: cluster.local
clusterDNS: [10.91.0.11]
resolvConf: ""
# The machine's disk is not the node's.
evictionHard: {memory.available: "50Mi", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
# A minute otherwise, before a Pod sees a ConfigMap that changed.
syncFrequency: 5s
staticPodPath: %STATE%/manifests
nodeStatusUpdateFrequency: 2s
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
# Before 1.31 it has to be asked for.
featureGates: {NFTablesProxyMode: true}
clusterCIDR: 10.244.0.0/16
oomScoreAdj: 0
clientConnection: {kubeconfig: %STATE%/pki/proxy.kubeconfig}
# The machine's limits stay as they are.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// kubeconfig is that of a user, whose name is his token.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.91.0.11:6443", certificate-authority: %STATE%/pki/ca.crt}}]
users: [{name: u, user: {token: %USER%}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// users are those of the control plane and one who has no rights, each a line of
// the API server's file of tokens.
const users = `admin,admin,admin,"system:masters"
kcm,system:kube-controller-manager,kcm,
scheduler,system:kube-scheduler,scheduler,
proxy,system:kube-proxy,proxy,
kubelet,system:node:node1,kubelet,"system:nodes"
dev,dev,dev,
`
