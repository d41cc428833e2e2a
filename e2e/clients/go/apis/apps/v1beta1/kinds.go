// Code generated from manifests/crds by generate. DO NOT EDIT.

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kruise-rs.test/clients/apis/apps"
)

// GroupVersion is that of the kinds here.
var GroupVersion = schema.GroupVersion{Group: "apps.kruise.io", Version: "v1beta1"}

// AdvancedCronJob: AdvancedCronJob makes a Job, a BroadcastJob or an ImageListPullJob by a schedule, as a CronJob makes Jobs.
type AdvancedCronJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.AdvancedCronJobSpec   `json:"spec,omitempty"`
	Status apps.AdvancedCronJobStatus `json:"status,omitempty"`
}

func (in *AdvancedCronJob) DeepCopyInto(out *AdvancedCronJob) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *AdvancedCronJob) DeepCopyObject() runtime.Object {
	out := new(AdvancedCronJob)
	in.DeepCopyInto(out)
	return out
}

type AdvancedCronJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AdvancedCronJob `json:"items"`
}

func (in *AdvancedCronJobList) DeepCopyObject() runtime.Object {
	out := &AdvancedCronJobList{TypeMeta: in.TypeMeta, Items: make([]AdvancedCronJob, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// BroadcastJob: BroadcastJob runs a Pod to its end on each node that fits: a DaemonSet that ends.
type BroadcastJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.BroadcastJobSpec   `json:"spec,omitempty"`
	Status apps.BroadcastJobStatus `json:"status,omitempty"`
}

func (in *BroadcastJob) DeepCopyInto(out *BroadcastJob) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *BroadcastJob) DeepCopyObject() runtime.Object {
	out := new(BroadcastJob)
	in.DeepCopyInto(out)
	return out
}

type BroadcastJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BroadcastJob `json:"items"`
}

func (in *BroadcastJobList) DeepCopyObject() runtime.Object {
	out := &BroadcastJobList{TypeMeta: in.TypeMeta, Items: make([]BroadcastJob, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// ContainerRecreateRequest: ContainerRecreateRequest asks for chosen containers of one running Pod to be stopped and started again in place.
type ContainerRecreateRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.ContainerRecreateRequestSpec   `json:"spec,omitempty"`
	Status apps.ContainerRecreateRequestStatus `json:"status,omitempty"`
}

func (in *ContainerRecreateRequest) DeepCopyInto(out *ContainerRecreateRequest) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *ContainerRecreateRequest) DeepCopyObject() runtime.Object {
	out := new(ContainerRecreateRequest)
	in.DeepCopyInto(out)
	return out
}

type ContainerRecreateRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ContainerRecreateRequest `json:"items"`
}

func (in *ContainerRecreateRequestList) DeepCopyObject() runtime.Object {
	out := &ContainerRecreateRequestList{TypeMeta: in.TypeMeta, Items: make([]ContainerRecreateRequest, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// DaemonSet: DaemonSet runs one Pod on each node that fits, like the built-in DaemonSet.
type DaemonSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.DaemonSetSpec   `json:"spec,omitempty"`
	Status apps.DaemonSetStatus `json:"status,omitempty"`
}

func (in *DaemonSet) DeepCopyInto(out *DaemonSet) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *DaemonSet) DeepCopyObject() runtime.Object {
	out := new(DaemonSet)
	in.DeepCopyInto(out)
	return out
}

type DaemonSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DaemonSet `json:"items"`
}

func (in *DaemonSetList) DeepCopyObject() runtime.Object {
	out := &DaemonSetList{TypeMeta: in.TypeMeta, Items: make([]DaemonSet, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// ImageListPullJob: ImageListPullJob makes one ImagePullJob for each image of a list, and reports how far they are together.
type ImageListPullJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.ImageListPullJobSpec   `json:"spec,omitempty"`
	Status apps.ImageListPullJobStatus `json:"status,omitempty"`
}

func (in *ImageListPullJob) DeepCopyInto(out *ImageListPullJob) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *ImageListPullJob) DeepCopyObject() runtime.Object {
	out := new(ImageListPullJob)
	in.DeepCopyInto(out)
	return out
}

type ImageListPullJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ImageListPullJob `json:"items"`
}

func (in *ImageListPullJobList) DeepCopyObject() runtime.Object {
	out := &ImageListPullJobList{TypeMeta: in.TypeMeta, Items: make([]ImageListPullJob, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// ImagePullJob: ImagePullJob has the daemons pull one image on nodes, a number of nodes at a time, so that Pods that need it later start without waiting for the registry.
type ImagePullJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.ImagePullJobSpec   `json:"spec,omitempty"`
	Status apps.ImagePullJobStatus `json:"status,omitempty"`
}

func (in *ImagePullJob) DeepCopyInto(out *ImagePullJob) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *ImagePullJob) DeepCopyObject() runtime.Object {
	out := new(ImagePullJob)
	in.DeepCopyInto(out)
	return out
}

type ImagePullJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ImagePullJob `json:"items"`
}

func (in *ImagePullJobList) DeepCopyObject() runtime.Object {
	out := &ImagePullJobList{TypeMeta: in.TypeMeta, Items: make([]ImagePullJob, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// NodeImage: NodeImage lists the images that the node of that name is to have, and what became of them.
type NodeImage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.NodeImageSpec   `json:"spec,omitempty"`
	Status apps.NodeImageStatus `json:"status,omitempty"`
}

func (in *NodeImage) DeepCopyInto(out *NodeImage) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *NodeImage) DeepCopyObject() runtime.Object {
	out := new(NodeImage)
	in.DeepCopyInto(out)
	return out
}

type NodeImageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeImage `json:"items"`
}

func (in *NodeImageList) DeepCopyObject() runtime.Object {
	out := &NodeImageList{TypeMeta: in.TypeMeta, Items: make([]NodeImage, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// SidecarSet: SidecarSet puts containers into the Pods that its selector matches, when they are created, and updates the images of these containers in place: the Pod and its other containers go on running.
type SidecarSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.SidecarSetSpec   `json:"spec,omitempty"`
	Status apps.SidecarSetStatus `json:"status,omitempty"`
}

func (in *SidecarSet) DeepCopyInto(out *SidecarSet) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *SidecarSet) DeepCopyObject() runtime.Object {
	out := new(SidecarSet)
	in.DeepCopyInto(out)
	return out
}

type SidecarSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []SidecarSet `json:"items"`
}

func (in *SidecarSetList) DeepCopyObject() runtime.Object {
	out := &SidecarSetList{TypeMeta: in.TypeMeta, Items: make([]SidecarSet, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// StatefulSet: StatefulSet runs Pods with an ordinal, a stable name and claims of their own, like the built-in StatefulSet.
type StatefulSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.StatefulSetSpec   `json:"spec,omitempty"`
	Status apps.StatefulSetStatus `json:"status,omitempty"`
}

func (in *StatefulSet) DeepCopyInto(out *StatefulSet) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *StatefulSet) DeepCopyObject() runtime.Object {
	out := new(StatefulSet)
	in.DeepCopyInto(out)
	return out
}

type StatefulSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []StatefulSet `json:"items"`
}

func (in *StatefulSetList) DeepCopyObject() runtime.Object {
	out := &StatefulSetList{TypeMeta: in.TypeMeta, Items: make([]StatefulSet, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}
