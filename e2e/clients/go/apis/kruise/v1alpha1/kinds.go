// Code generated from manifests/crds by generate. DO NOT EDIT.

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kruise-rs.test/clients/apis/kruise"
)

// GroupVersion is that of the kinds here.
var GroupVersion = schema.GroupVersion{Group: "kruise.rs", Version: "v1alpha1"}

// WorkloadRestart: WorkloadRestart restarts containers of every Pod of a workload in place: no Pod is deleted or moved, and the workload's template stays as it is.
type WorkloadRestart struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   kruise.WorkloadRestartSpec   `json:"spec,omitempty"`
	Status kruise.WorkloadRestartStatus `json:"status,omitempty"`
}

func (in *WorkloadRestart) DeepCopyInto(out *WorkloadRestart) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *WorkloadRestart) DeepCopyObject() runtime.Object {
	out := new(WorkloadRestart)
	in.DeepCopyInto(out)
	return out
}

type WorkloadRestartList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []WorkloadRestart `json:"items"`
}

func (in *WorkloadRestartList) DeepCopyObject() runtime.Object {
	out := &WorkloadRestartList{TypeMeta: in.TypeMeta, Items: make([]WorkloadRestart, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}
