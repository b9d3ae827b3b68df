package controlplane

import (
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// WriteKubeconfig writes a kubeconfig of the admin, whose namespace is default.
func (p *Plane) WriteKubeconfig(file string) error {
	kube := clientcmdapi.NewConfig()
	kube.Clusters["c"] = &clientcmdapi.Cluster{Server: p.Config.Host, CertificateAuthorityData: p.Config.CAData}
	kube.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: p.Config.CertData, ClientKeyData: p.Config.KeyData}
	kube.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "default"}
	kube.CurrentContext = "x"
	return clientcmd.WriteToFile(*kube, file)
}
