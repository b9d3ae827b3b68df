package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is Group and Version as clients take them.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: Version}
}

// AddToScheme makes the kinds of this package known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(),
		&BpfApplication{}, &BpfApplicationList{},
		&ClusterBpfApplication{}, &ClusterBpfApplicationList{},
		&BpfPolicy{}, &BpfPolicyList{},
		&ClusterBpfPolicy{}, &ClusterBpfPolicyList{},
		&BpfSigner{}, &BpfSignerList{},
		&BpfImage{}, &BpfImageList{},
		&BpfIntent{}, &BpfIntentList{},
		&BpfNode{}, &BpfNodeList{},
		&CueArtifact{}, &CueArtifactList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
