// Code generated from manifests/crds by generate. DO NOT EDIT.

package apis

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	appsv1alpha1 "kruise-rs.test/clients/apis/apps/v1alpha1"
	appsv1beta1 "kruise-rs.test/clients/apis/apps/v1beta1"
	kruisev1alpha1 "kruise-rs.test/clients/apis/kruise/v1alpha1"
	policyv1alpha1 "kruise-rs.test/clients/apis/policy/v1alpha1"
)

// Kind is a kind in one of the versions in which it is served.
type Kind struct {
	schema.GroupVersionKind
	Plural       string
	IsNamespaced bool
	HasScale     bool
	// An empty object and an empty list of the kind.
	Object, List runtime.Object
}

// Kinds is every kind in every version in which it is served.
var Kinds = []Kind{
	{appsv1beta1.GroupVersion.WithKind("AdvancedCronJob"), "advancedcronjobs", true, false, &appsv1beta1.AdvancedCronJob{}, &appsv1beta1.AdvancedCronJobList{}},
	{appsv1alpha1.GroupVersion.WithKind("AdvancedCronJob"), "advancedcronjobs", true, false, &appsv1alpha1.AdvancedCronJob{}, &appsv1alpha1.AdvancedCronJobList{}},
	{appsv1beta1.GroupVersion.WithKind("BroadcastJob"), "broadcastjobs", true, false, &appsv1beta1.BroadcastJob{}, &appsv1beta1.BroadcastJobList{}},
	{appsv1alpha1.GroupVersion.WithKind("BroadcastJob"), "broadcastjobs", true, false, &appsv1alpha1.BroadcastJob{}, &appsv1alpha1.BroadcastJobList{}},
	{appsv1alpha1.GroupVersion.WithKind("CloneSet"), "clonesets", true, true, &appsv1alpha1.CloneSet{}, &appsv1alpha1.CloneSetList{}},
	{appsv1alpha1.GroupVersion.WithKind("ContainerRecreateRequest"), "containerrecreaterequests", true, false, &appsv1alpha1.ContainerRecreateRequest{}, &appsv1alpha1.ContainerRecreateRequestList{}},
	{appsv1beta1.GroupVersion.WithKind("ContainerRecreateRequest"), "containerrecreaterequests", true, false, &appsv1beta1.ContainerRecreateRequest{}, &appsv1beta1.ContainerRecreateRequestList{}},
	{appsv1beta1.GroupVersion.WithKind("DaemonSet"), "daemonsets", true, false, &appsv1beta1.DaemonSet{}, &appsv1beta1.DaemonSetList{}},
	{appsv1alpha1.GroupVersion.WithKind("DaemonSet"), "daemonsets", true, false, &appsv1alpha1.DaemonSet{}, &appsv1alpha1.DaemonSetList{}},
	{appsv1alpha1.GroupVersion.WithKind("EphemeralJob"), "ephemeraljobs", true, false, &appsv1alpha1.EphemeralJob{}, &appsv1alpha1.EphemeralJobList{}},
	{appsv1beta1.GroupVersion.WithKind("ImageListPullJob"), "imagelistpulljobs", true, false, &appsv1beta1.ImageListPullJob{}, &appsv1beta1.ImageListPullJobList{}},
	{appsv1alpha1.GroupVersion.WithKind("ImageListPullJob"), "imagelistpulljobs", true, false, &appsv1alpha1.ImageListPullJob{}, &appsv1alpha1.ImageListPullJobList{}},
	{appsv1beta1.GroupVersion.WithKind("ImagePullJob"), "imagepulljobs", true, false, &appsv1beta1.ImagePullJob{}, &appsv1beta1.ImagePullJobList{}},
	{appsv1alpha1.GroupVersion.WithKind("ImagePullJob"), "imagepulljobs", true, false, &appsv1alpha1.ImagePullJob{}, &appsv1alpha1.ImagePullJobList{}},
	{appsv1beta1.GroupVersion.WithKind("NodeImage"), "nodeimages", false, false, &appsv1beta1.NodeImage{}, &appsv1beta1.NodeImageList{}},
	{appsv1alpha1.GroupVersion.WithKind("NodeImage"), "nodeimages", false, false, &appsv1alpha1.NodeImage{}, &appsv1alpha1.NodeImageList{}},
	{appsv1alpha1.GroupVersion.WithKind("NodePodProbe"), "nodepodprobes", false, false, &appsv1alpha1.NodePodProbe{}, &appsv1alpha1.NodePodProbeList{}},
	{appsv1alpha1.GroupVersion.WithKind("PersistentPodState"), "persistentpodstates", true, false, &appsv1alpha1.PersistentPodState{}, &appsv1alpha1.PersistentPodStateList{}},
	{appsv1alpha1.GroupVersion.WithKind("PodProbeMarker"), "podprobemarkers", true, false, &appsv1alpha1.PodProbeMarker{}, &appsv1alpha1.PodProbeMarkerList{}},
	{policyv1alpha1.GroupVersion.WithKind("PodUnavailableBudget"), "podunavailablebudgets", true, false, &policyv1alpha1.PodUnavailableBudget{}, &policyv1alpha1.PodUnavailableBudgetList{}},
	{appsv1alpha1.GroupVersion.WithKind("ResourceDistribution"), "resourcedistributions", false, false, &appsv1alpha1.ResourceDistribution{}, &appsv1alpha1.ResourceDistributionList{}},
	{appsv1beta1.GroupVersion.WithKind("SidecarSet"), "sidecarsets", false, false, &appsv1beta1.SidecarSet{}, &appsv1beta1.SidecarSetList{}},
	{appsv1alpha1.GroupVersion.WithKind("SidecarSet"), "sidecarsets", false, false, &appsv1alpha1.SidecarSet{}, &appsv1alpha1.SidecarSetList{}},
	{appsv1beta1.GroupVersion.WithKind("StatefulSet"), "statefulsets", true, true, &appsv1beta1.StatefulSet{}, &appsv1beta1.StatefulSetList{}},
	{appsv1alpha1.GroupVersion.WithKind("StatefulSet"), "statefulsets", true, true, &appsv1alpha1.StatefulSet{}, &appsv1alpha1.StatefulSetList{}},
	{appsv1alpha1.GroupVersion.WithKind("UnitedDeployment"), "uniteddeployments", true, true, &appsv1alpha1.UnitedDeployment{}, &appsv1alpha1.UnitedDeploymentList{}},
	{kruisev1alpha1.GroupVersion.WithKind("WorkloadRestart"), "workloadrestarts", true, false, &kruisev1alpha1.WorkloadRestart{}, &kruisev1alpha1.WorkloadRestartList{}},
	{appsv1alpha1.GroupVersion.WithKind("WorkloadSpread"), "workloadspreads", true, false, &appsv1alpha1.WorkloadSpread{}, &appsv1alpha1.WorkloadSpreadList{}},
}
