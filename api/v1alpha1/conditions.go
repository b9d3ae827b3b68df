package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The methods below are what fluxcd/pkg/runtime/conditions asks of an object.

// GetConditions returns the status conditions.
func (a *BpfApplication) GetConditions() []metav1.Condition { return a.Status.Conditions }

// SetConditions replaces the status conditions.
func (a *BpfApplication) SetConditions(c []metav1.Condition) { a.Status.Conditions = c }

// GetConditions returns the status conditions.
func (a *ClusterBpfApplication) GetConditions() []metav1.Condition { return a.Status.Conditions }

// SetConditions replaces the status conditions.
func (a *ClusterBpfApplication) SetConditions(c []metav1.Condition) { a.Status.Conditions = c }

// GetConditions returns the status conditions.
func (p *BpfPolicy) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions replaces the status conditions.
func (p *BpfPolicy) SetConditions(c []metav1.Condition) { p.Status.Conditions = c }

// GetConditions returns the status conditions.
func (p *ClusterBpfPolicy) GetConditions() []metav1.Condition { return p.Status.Conditions }

// SetConditions replaces the status conditions.
func (p *ClusterBpfPolicy) SetConditions(c []metav1.Condition) { p.Status.Conditions = c }

// GetConditions returns the status conditions.
func (s *BpfSigner) GetConditions() []metav1.Condition { return s.Status.Conditions }

// SetConditions replaces the status conditions.
func (s *BpfSigner) SetConditions(c []metav1.Condition) { s.Status.Conditions = c }

// GetConditions returns the status conditions.
func (c *CueArtifact) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the status conditions.
func (c *CueArtifact) SetConditions(all []metav1.Condition) { c.Status.Conditions = all }
