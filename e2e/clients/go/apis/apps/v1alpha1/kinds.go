// Code generated from manifests/crds by generate. DO NOT EDIT.

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kruise-rs.test/clients/apis/apps"
)

// GroupVersion is that of the kinds here.
var GroupVersion = schema.GroupVersion{Group: "apps.kruise.io", Version: "v1alpha1"}

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

// CloneSet: CloneSet runs a number of equal Pods, like a Deployment, and can update them in place: a new image restarts the container, and the Pod keeps its node, address and volumes.
type CloneSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.CloneSetSpec   `json:"spec,omitempty"`
	Status apps.CloneSetStatus `json:"status,omitempty"`
}

func (in *CloneSet) DeepCopyInto(out *CloneSet) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *CloneSet) DeepCopyObject() runtime.Object {
	out := new(CloneSet)
	in.DeepCopyInto(out)
	return out
}

type CloneSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CloneSet `json:"items"`
}

func (in *CloneSetList) DeepCopyObject() runtime.Object {
	out := &CloneSetList{TypeMeta: in.TypeMeta, Items: make([]CloneSet, len(in.Items))}
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

// EphemeralJob: EphemeralJob adds ephemeral containers to the Pods that its selector matches, some Pods at a time, and reports how they end.
type EphemeralJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.EphemeralJobSpec   `json:"spec,omitempty"`
	Status apps.EphemeralJobStatus `json:"status,omitempty"`
}

func (in *EphemeralJob) DeepCopyInto(out *EphemeralJob) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *EphemeralJob) DeepCopyObject() runtime.Object {
	out := new(EphemeralJob)
	in.DeepCopyInto(out)
	return out
}

type EphemeralJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EphemeralJob `json:"items"`
}

func (in *EphemeralJobList) DeepCopyObject() runtime.Object {
	out := &EphemeralJobList{TypeMeta: in.TypeMeta, Items: make([]EphemeralJob, len(in.Items))}
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

// NodePodProbe: NodePodProbe holds what is probed on the node of its name, and the results.
type NodePodProbe struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.NodePodProbeSpec   `json:"spec,omitempty"`
	Status apps.NodePodProbeStatus `json:"status,omitempty"`
}

func (in *NodePodProbe) DeepCopyInto(out *NodePodProbe) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *NodePodProbe) DeepCopyObject() runtime.Object {
	out := new(NodePodProbe)
	in.DeepCopyInto(out)
	return out
}

type NodePodProbeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodePodProbe `json:"items"`
}

func (in *NodePodProbeList) DeepCopyObject() runtime.Object {
	out := &NodePodProbeList{TypeMeta: in.TypeMeta, Items: make([]NodePodProbe, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// PersistentPodState: PersistentPodState brings the Pods of a StatefulSet back to where they ran: it records the node of each Pod that is Ready, and a Pod that is created again under the same name gets node selectors and affinities for it.
type PersistentPodState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.PersistentPodStateSpec   `json:"spec,omitempty"`
	Status apps.PersistentPodStateStatus `json:"status,omitempty"`
}

func (in *PersistentPodState) DeepCopyInto(out *PersistentPodState) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *PersistentPodState) DeepCopyObject() runtime.Object {
	out := new(PersistentPodState)
	in.DeepCopyInto(out)
	return out
}

type PersistentPodStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PersistentPodState `json:"items"`
}

func (in *PersistentPodStateList) DeepCopyObject() runtime.Object {
	out := &PersistentPodStateList{TypeMeta: in.TypeMeta, Items: make([]PersistentPodState, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// PodProbeMarker: PodProbeMarker probes containers of running Pods, from their node as kubelet does, and writes the results on the Pods as conditions, labels and annotations.
type PodProbeMarker struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.PodProbeMarkerSpec   `json:"spec,omitempty"`
	Status apps.PodProbeMarkerStatus `json:"status,omitempty"`
}

func (in *PodProbeMarker) DeepCopyInto(out *PodProbeMarker) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *PodProbeMarker) DeepCopyObject() runtime.Object {
	out := new(PodProbeMarker)
	in.DeepCopyInto(out)
	return out
}

type PodProbeMarkerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PodProbeMarker `json:"items"`
}

func (in *PodProbeMarkerList) DeepCopyObject() runtime.Object {
	out := &PodProbeMarkerList{TypeMeta: in.TypeMeta, Items: make([]PodProbeMarker, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// ResourceDistribution: ResourceDistribution keeps a copy of one Secret or ConfigMap in each of many namespaces, which are listed, selected by their labels, or all.
type ResourceDistribution struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.ResourceDistributionSpec   `json:"spec,omitempty"`
	Status apps.ResourceDistributionStatus `json:"status,omitempty"`
}

func (in *ResourceDistribution) DeepCopyInto(out *ResourceDistribution) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *ResourceDistribution) DeepCopyObject() runtime.Object {
	out := new(ResourceDistribution)
	in.DeepCopyInto(out)
	return out
}

type ResourceDistributionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ResourceDistribution `json:"items"`
}

func (in *ResourceDistributionList) DeepCopyObject() runtime.Object {
	out := &ResourceDistributionList{TypeMeta: in.TypeMeta, Items: make([]ResourceDistribution, len(in.Items))}
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

// UnitedDeployment: UnitedDeployment runs one workload in several subsets: a Deployment, CloneSet or StatefulSet for each of them, with nodes and a number of replicas of its own.
type UnitedDeployment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.UnitedDeploymentSpec   `json:"spec,omitempty"`
	Status apps.UnitedDeploymentStatus `json:"status,omitempty"`
}

func (in *UnitedDeployment) DeepCopyInto(out *UnitedDeployment) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *UnitedDeployment) DeepCopyObject() runtime.Object {
	out := new(UnitedDeployment)
	in.DeepCopyInto(out)
	return out
}

type UnitedDeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []UnitedDeployment `json:"items"`
}

func (in *UnitedDeploymentList) DeepCopyObject() runtime.Object {
	out := &UnitedDeploymentList{TypeMeta: in.TypeMeta, Items: make([]UnitedDeployment, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

// WorkloadSpread: WorkloadSpread spreads the Pods of one workload over subsets: a new Pod goes to the first subset that has room, and gets its nodes, its tolerations and its patch.
type WorkloadSpread struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   apps.WorkloadSpreadSpec   `json:"spec,omitempty"`
	Status apps.WorkloadSpreadStatus `json:"status,omitempty"`
}

func (in *WorkloadSpread) DeepCopyInto(out *WorkloadSpread) {
	out.TypeMeta = in.TypeMeta
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.DeepCopyInto(&out.Spec)
	in.Status.DeepCopyInto(&out.Status)
}

func (in *WorkloadSpread) DeepCopyObject() runtime.Object {
	out := new(WorkloadSpread)
	in.DeepCopyInto(out)
	return out
}

type WorkloadSpreadList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []WorkloadSpread `json:"items"`
}

func (in *WorkloadSpreadList) DeepCopyObject() runtime.Object {
	out := &WorkloadSpreadList{TypeMeta: in.TypeMeta, Items: make([]WorkloadSpread, len(in.Items))}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}
