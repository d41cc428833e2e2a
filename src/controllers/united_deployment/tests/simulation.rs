//! Random histories of UnitedDeployments: the real controller with its queue, an API server in memory, watches that are late
//! and of which each brings its own news, played controllers of the workloads, zones without room, users, refused writes,
//! and managers that end between two writes. See [`crate::liveness`].

mod cloud;
mod model;

use cloud::Cloud;
use model::Promises;

use crate::{
    controllers::fake::in_paused_time,
    liveness::{self, Limits, Random},
};

#[test]
fn simulation_of_united_deployments() {
    let acts = liveness::seeds(40, "simulation_of_united_deployments", |seed| {
        in_paused_time(seed, async {
            let mut cloud = Cloud::new(&mut Random(seed));
            let (mut promises, began) = (Promises::default(), cloud.told());
            let limits = Limits { changes: 20, steps_between: 40, ..Limits::default() };
            let run = liveness::run(seed, &limits, &mut cloud, &mut promises).await;
            run.map_err(|why| format!("{why}\nbegan as {began}"))?;
            cloud.rest(&mut Random(seed)).await?;
            let mut acts = cloud.acts();
            acts.merge(promises.acts);
            Ok(acts)
        })
    });
    acts.require(&[
        ("totals", 60),
        ("images", 60),
        ("broken images", 30),
        ("partitions", 15),
        ("budgets", 15),
        ("subsets", 40),
        ("patches", 30),
        ("kinds", 10),
        ("pauses", 10),
        ("strategies", 20),
        ("labels taken off", 15),
        ("zones without room", 50),
        ("stalled subsets", 25),
        ("zones lost", 30),
        ("Pods harmed", 30),
        ("workloads deleted by others", 20),
        ("workloads changed by others", 20),
        ("second workloads", 20),
        ("made again", 10),
        ("refused writes", 50),
        ("lost answers", 10),
        ("managers that ended between writes", 20),
        ("managers that started anew", 50),
        // What came of it.
        ("workloads made", 200),
        ("workloads deleted when they were replaced", 50),
        ("subsets without places", 5),
        ("passes with Ready Pods above one without a place", 1),
        ("Pods marked as reserved", 15),
        ("Pods rolled", 200),
        ("Ready said", 100),
        ("budgets used up", 30),
        ("numbers that do not fit", 3),
        ("at rest without Pods", 5),
        ("zones that stay full", 1),
    ]);
}
