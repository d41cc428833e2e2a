//! Nodes that come to large sets.

use super::*;
use crate::{domain::pod::inplace::Allowed, runtime::watches::StoreIndex};

/// A set that runs on a hundred nodes, with what its passes have written forgotten.
async fn on_a_hundred_nodes(changes: Value) -> World {
    let names: Vec<String> = (0..100).map(|index| format!("n{index:03}")).collect();
    let world = World::with_nodes(&names.iter().map(String::as_str).collect::<Vec<_>>());
    world.apply(changes);
    world.settle().await;
    assert_eq!(world.pods().len(), 100);
    world.sent();
    world
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("", name)
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_gets_its_pod_without_a_pass_and_only_one() {
    let world = on_a_hundred_nodes(json!({})).await;
    world.node("new", json!({}));
    world.controller.node_arrives(&key("new")).await.unwrap();
    world.controller.node_arrives(&key("new")).await.unwrap();
    assert_eq!(world.sent().len(), 1, "one creation, and nothing else");
    world.settle().await;
    let on_new = world.images().into_iter().filter(|(node, _)| node == "new").count();
    assert_eq!((on_new, world.pods().len()), (1, 101));
    assert_eq!(world.status()["desiredNumberScheduled"], 101);
}

#[tokio::test(start_paused = true)]
async fn of_a_thousand_pods_only_those_of_the_node_that_comes_are_looked_at() {
    let world = on_a_hundred_nodes(json!({})).await;
    let pod = world.pods().remove(0);
    for index in 100..1000 {
        let (mut other, name) = (pod.clone(), format!("other-{index}"));
        other["spec"]["nodeName"] = format!("m{index}").into();
        for field in ["name", "uid"] {
            other["metadata"][field] = name.as_str().into();
        }
        world.controller.context.pods.upsert(serde_json::from_value(other).unwrap());
    }
    assert_eq!(world.controller.context.pods.len(), 1000);
    world.node("new", json!({}));
    let before = StoreIndex::<PodView>::looked_at();
    world.controller.node_arrives(&key("new")).await.unwrap();
    assert_eq!(world.sent().len(), 1, "its Pod is made");
    world.controller.node_arrives(&key("new")).await.unwrap();
    let looked_at = StoreIndex::<PodView>::looked_at() - before;
    assert!((1..10).contains(&looked_at), "{looked_at} Pods");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_gets_no_pod_while_a_built_in_daemon_set_selects_the_same_pods() {
    let world = on_a_hundred_nodes(json!({})).await;
    for (node, built_in, made) in [("x", "other", 1), ("y", "agent", 0)] {
        world.put_built_in(built_in);
        world.see_built_in(built_in);
        world.node(node, json!({}));
        world.controller.node_arrives(&key(node)).await.unwrap();
        assert_eq!(world.sent().len(), made, "beside {built_in}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_looked_before_a_node_was_served_makes_no_second_pod() {
    let world = on_a_hundred_nodes(json!({})).await;
    world.node("new", json!({}));
    let held = world.controller.sets.get(&ObjectKey::new("ns", "agent")).unwrap();
    let set = Arc::new(held.open().unwrap());
    let spec = Arc::new(Spec::of(&set).unwrap());
    let job = Job { key: ObjectKey::new("ns", "agent"), owner: OwnerRef::of(set.as_ref()), held, set, spec };
    let resolved = world.controller.resolve(&job).await.unwrap();
    let seen = world.controller.see(&job, &resolved);
    world.controller.node_arrives(&key("new")).await.unwrap();
    let plan = pass::plan(&world.controller.observed(&job, &resolved, &seen, Some(Allowed::default())));
    assert_eq!(plan.actions.len(), 1, "it saw no Pod");
    world.controller.carry_out(&job, &resolved, &seen, plan, &mut Pass::default()).await;
    assert_eq!(world.pods().len(), 101);
}

#[tokio::test(start_paused = true)]
async fn what_one_node_cannot_tell_is_left_to_the_pass() {
    let cases = [
        ("how many are made depends on all", json!({"scaleStrategy": {"partitionedScaling": true}}), json!({})),
        ("no Pod is to be there", json!({}), json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}})),
    ];
    for (name, set, node) in cases {
        let world = on_a_hundred_nodes(set).await;
        world.node("new", node);
        world.controller.node_arrives(&key("new")).await.unwrap();
        assert_eq!(world.sent(), Vec::<String>::new(), "{name}");
    }
    let world = on_a_hundred_nodes(json!({})).await;
    world.image("i:2");
    world.deliver();
    world.node("new", json!({}));
    world.controller.node_arrives(&key("new")).await.unwrap();
    assert_eq!(world.sent(), Vec::<String>::new(), "the revision of the new spec is not known yet");
}

#[tokio::test(start_paused = true)]
async fn a_small_set_has_a_pass_at_once() {
    let world = World::with_nodes(&["a"]);
    world.apply(json!({}));
    world.settle().await;
    world.sent();
    world.node("b", json!({}));
    let node = world.controller.context.nodes.get("b").unwrap();
    world.controller.node_changed(&Change::Applied { old: None, new: &node, initial: false });
    assert_eq!((world.controller.queue.depth(), world.controller.arrivals.depth()), (1, 0));
    let world = on_a_hundred_nodes(json!({})).await;
    world.node("b", json!({}));
    let node = world.controller.context.nodes.get("b").unwrap();
    world.controller.node_changed(&Change::Applied { old: None, new: &node, initial: false });
    assert_eq!((world.controller.queue.depth(), world.controller.arrivals.depth()), (0, 1), "its pass waits a little");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_taint_is_taken_off_is_served_before_any_pass() {
    let taint = json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}});
    for (what, change, millis) in [
        ("nothing else", json!({}), 100),
        ("whether it is selected for updates", json!({"metadata": {"labels": {"zone": "b"}}}), 10),
    ] {
        let selector = json!({"matchLabels": {"zone": "b"}});
        let world = on_a_hundred_nodes(json!({"updateStrategy": {"rollingUpdate": {"selector": selector}}})).await;
        world.node("new", taint.clone());
        let old = world.controller.context.nodes.get("new").unwrap();
        world.node("new", change);
        let new = world.controller.context.nodes.get("new").unwrap();
        world.controller.node_changed(&Change::Applied { old: Some(&old), new: &new, initial: false });
        assert_eq!((world.controller.queue.depth(), world.controller.arrivals.depth()), (0, 1), "{what}");
        assert_eq!(world.controller.queue.next_in().expect("a pass").as_millis(), millis, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_whose_pod_cannot_be_made_by_itself_has_a_pass_soon() {
    let world = on_a_hundred_nodes(json!({"scaleStrategy": {"partitionedScaling": true}})).await;
    world.node("new", json!({}));
    let node = world.controller.context.nodes.get("new").unwrap();
    world.controller.node_changed(&Change::Applied { old: None, new: &node, initial: false });
    world.controller.node_arrives(&key("new")).await.unwrap();
    assert_eq!(world.sent(), Vec::<String>::new());
    assert_eq!(world.controller.queue.next_in().expect("a pass").as_millis(), 10);
    // A node that came to another set, and on which this one has nothing to do, brings it no pass.
    let world = on_a_hundred_nodes(json!({"scaleStrategy": {"partitionedScaling": true}})).await;
    world.node("new", json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}));
    let waits = || (world.controller.queue.next_in(), world.controller.queue.depth());
    let before = waits();
    world.controller.node_arrives(&key("new")).await.unwrap();
    assert_eq!(waits(), before);
}

#[tokio::test(start_paused = true)]
async fn news_of_a_pod_that_works_waits_longer_while_the_set_is_at_rest() {
    let next_in = |world: &World, of: &dyn Fn(&PodView) -> bool| {
        let pods = world.controller.context.pods.list();
        let pod = pods.iter().find(|pod| of(pod)).expect("a Pod");
        world.controller.common.wake(&world.controller.queue, &ObjectKey::new("ns", "agent"), Some(pod));
        world.controller.queue.next_in().expect("a pass").as_millis()
    };
    let world = on_a_hundred_nodes(json!({})).await;
    assert_eq!(next_in(&world, &|_| true), 100, "its status can wait");
    world.controller.queue.begin();
    let world = on_a_hundred_nodes(json!({})).await;
    world.image("i:2");
    world.deliver();
    world.controller.reconcile(&ObjectKey::new("ns", "agent")).await.unwrap();
    assert_eq!(next_in(&world, &|_| true), 10, "the next Pod's turn comes when this one works");
}
