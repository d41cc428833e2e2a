// Code generated from manifests/crds by generate. DO NOT EDIT.

package policy

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PodUnavailableBudgetTargetRef: The workload whose Pods are protected, in the namespace of the budget: a Deployment, ReplicaSet, StatefulSet or DaemonSet, one of apps.kruise.io, or any kind with a scale subresource (for those, Kruise has to be given the right to read it; the condition Resolved says which).
type PodUnavailableBudgetTargetRef struct {
	// Group and version, as in the workload's own manifest: apps/v1, for example.
	ApiVersion string `json:"apiVersion"`
	// Kind: Deployment, for example.
	Kind string `json:"kind"`
	// Name.
	Name string `json:"name"`
}

func (in *PodUnavailableBudgetTargetRef) DeepCopyInto(out *PodUnavailableBudgetTargetRef) {
	*out = *in
}

// PodUnavailableBudgetSpec: Which Pods are protected, and how many of them may be out of service.
type PodUnavailableBudgetSpec struct {
	// How many Pods have to stay in service: a number, or a share of the desired Pods such as "80%", rounded up.
	MinAvailable *intstr.IntOrString `json:"minAvailable,omitempty"`
	// The Pods by their labels, in the namespace of the budget.
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// The workload whose Pods are protected, in the namespace of the budget: a Deployment, ReplicaSet, StatefulSet or DaemonSet, one of apps.kruise.io, or any kind with a scale subresource (for those, Kruise has to be given the right to read it; the condition Resolved says which).
	TargetRef *PodUnavailableBudgetTargetRef `json:"targetRef,omitempty"`
}

func (in *PodUnavailableBudgetSpec) DeepCopyInto(out *PodUnavailableBudgetSpec) {
	*out = *in
	if in.MinAvailable != nil {
		out.MinAvailable = new(intstr.IntOrString)
		*out.MinAvailable = *in.MinAvailable
	}
	if in.Selector != nil {
		out.Selector = new(metav1.LabelSelector)
		in.Selector.DeepCopyInto(out.Selector)
	}
	if in.TargetRef != nil {
		out.TargetRef = new(PodUnavailableBudgetTargetRef)
		in.TargetRef.DeepCopyInto(out.TargetRef)
	}
}

// PodUnavailableBudgetStatus: How it stands.
type PodUnavailableBudgetStatus struct {
	// Resolved: whether the Pods and their number could be found.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Pods in service: ready, not being deleted, not being updated in place, and not in one of the lists.
	CurrentAvailable int32 `json:"currentAvailable"`
	// Pods that have to stay in service.
	DesiredAvailable int32 `json:"desiredAvailable"`
	// Pods whose deletion or eviction was allowed but not observed yet, with the time of consent.
	DisruptedPods map[string]metav1.Time `json:"disruptedPods,omitempty"`
	// The generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration"`
	// The selector of the Pods of targetRef, from its scale subresource, so that the webhook needs no right to read that.
	Selector *string `json:"selector,omitempty"`
	// Pods that there should be: the basis of shares.
	TotalReplicas int32 `json:"totalReplicas"`
	// Pods that may be taken out of service now.
	UnavailableAllowed int32 `json:"unavailableAllowed"`
	// Pods whose update, resize or container restart was allowed but is not done yet, with the time of consent.
	UnavailablePods map[string]metav1.Time `json:"unavailablePods,omitempty"`
}

func (in *PodUnavailableBudgetStatus) DeepCopyInto(out *PodUnavailableBudgetStatus) {
	*out = *in
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		copy(out.Conditions, in.Conditions)
		for i1 := range in.Conditions {
			in.Conditions[i1].DeepCopyInto(&out.Conditions[i1])
		}
	}
	if in.DisruptedPods != nil {
		out.DisruptedPods = make(map[string]metav1.Time, len(in.DisruptedPods))
		for key, value1 := range in.DisruptedPods {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.DisruptedPods[key] = copied
		}
	}
	if in.Selector != nil {
		out.Selector = new(string)
		*out.Selector = *in.Selector
	}
	if in.UnavailablePods != nil {
		out.UnavailablePods = make(map[string]metav1.Time, len(in.UnavailablePods))
		for key, value1 := range in.UnavailablePods {
			copied := value1
			value1.DeepCopyInto(&copied)
			out.UnavailablePods[key] = copied
		}
	}
}
