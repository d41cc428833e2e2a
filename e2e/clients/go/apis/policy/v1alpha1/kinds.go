// Code generated from manifests/crds by generate. DO NOT EDIT.

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kruise-rs.test/clients/apis/policy"
)

// GroupVersion is that of the kinds here.
var GroupVersion = schema.GroupVersion{Group: "policy.kruise.io", Version: "v1alpha1"}

// PodUnavailableBudget: PodUnavailableBudget limits how many Pods are out of service at a time: it refuses deletions, evictions and, with the feature gate PodUnavailableBudgetUpdateGate, updates in place, resizes and container restarts that would exceed the limit.
type PodUnavailableBudget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   policy.PodUnavailableBudgetSpec   `json:"spec,omitempty"`
	Status policy.PodUnavailableBudgetStatus `json:"status,omitempty"`
}

func (in *PodUnavailableBudget) DeepCopyInto(out *PodUnavailableBudget) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *PodUnavailableBudget) DeepCopyObject() runtime.Object {
	out := new(PodUnavailableBudget)
	in.DeepCopyInto(out)
	return out
}

type PodUnavailableBudgetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PodUnavailableBudget `json:"items"`
}

func (in *PodUnavailableBudgetList) DeepCopyObject() runtime.Object {
	out := &PodUnavailableBudgetList{TypeMeta: in.TypeMeta, Items: make([]PodUnavailableBudget, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}
