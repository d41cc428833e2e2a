//! What feature gates switch on. They are all switched on once: every change of the gates replaces managers and webhooks.

use anyhow::{Context, Result};
use e2e::kit::{in_namespace, restoring};

use crate::{
    budgets, claims, pre_download, resize, resource_distribution, serverless_probes, sidecar_terminator, start_ordinal,
    takeover,
};

/// Of the gates for budgets each by itself: in the parallel tests deletions are guarded and updates are not.
const ON: &str = "ImagePullJobGate=true,PodUnavailableBudgetUpdateGate=true,PodUnavailableBudgetDeleteGate=false,\
    PreDownloadImageForInPlaceUpdate=true,InPlaceWorkloadVerticalScaling=true,EnablePodProbeMarkerOnServerless=true,\
    StatefulSetAutoResizePVCGate=true,StatefulSetStartOrdinal=true,SidecarTerminator=true,ResourceDistributionGate=true";

#[tokio::test]
async fn what_feature_gates_switch_on_works_behind_them() -> Result<()> {
    in_namespace("gated", async |t| {
        let probes_off = serverless_probes::while_off(t).await;
        let on = async {
            resource_distribution::refused_while_off(t).await?;
            resource_distribution::component(t, true).await?;
            t.set_gates(ON).await?;
            // Before the others: the manager is away for a while.
            let taken_over =
                Box::pin(takeover::jobs_subsets_and_copies_of_openkruise_are_taken_over_without_touching_any()).await;
            // On the heap: together they are more than the stack of a test.
            let together = tokio::join!(
                Box::pin(budgets::updates_resizes_and_container_restarts_need_consent()),
                Box::pin(pre_download::a_new_image_is_pulled_before_pods_are_updated_to_it()),
                Box::pin(resize::resources_change_in_place_without_a_restart()),
                Box::pin(serverless_probes::once_on(t)),
                Box::pin(claims::claims_grow_with_their_template_one_pod_after_the_other()),
                Box::pin(start_ordinal::ordinals_begin_where_they_are_to_begin_and_move_with_it()),
                Box::pin(sidecar_terminator::jobs_end_with_their_sidecars()),
                Box::pin(resource_distribution::copies_are_where_they_are_wanted()),
                Box::pin(resource_distribution::a_referenced_secret_is_followed_with_the_rights_of_its_author()),
                Box::pin(resource_distribution::every_example_of_the_guide_is_accepted(t)),
                Box::pin(resource_distribution::programs_of_others_work_with_it()),
            );
            Ok((taken_over, together))
        };
        let off = async {
            resource_distribution::component(t, false).await?;
            serverless_probes::tidy(t).await?;
            t.set_gates("ImagePullJobGate=true").await
        };
        let (taken_over, together) = restoring(on, off).await?;
        let (budgets, images, resources, probes_on, claims, ordinals, sidecars, copies, referenced, examples, others) =
            together;
        taken_over.context("jobs, subsets and copies of OpenKruise are taken over")?;
        budgets.context("updates, resizes and restarts need consent")?;
        images.context("a new image is pulled before Pods are updated to it")?;
        resources.context("resources change in place without a restart")?;
        claims.context("claims grow with their template")?;
        ordinals.context("ordinals begin at their start")?;
        sidecars.context("jobs end with their sidecars")?;
        copies.context("copies are where they are wanted")?;
        referenced.context("a referenced Secret is followed")?;
        examples.context("examples of ResourceDistributions")?;
        others.context("ResourceDistributions by programs of others")?;
        probes_off.context("probes on virtual nodes while their gate is off")?;
        probes_on.context("probes on virtual nodes")
    })
    .await
}
