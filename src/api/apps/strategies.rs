//! The values that fields of update strategies and policies may have. In objects they are texts, which older and newer
//! releases may know more of; whoever reads one parses it here, and its spelling stands nowhere else.

/// An enum of the values of one field. The first one is the default, for a field that is missing or empty.
macro_rules! values {
    ($(#[$about:meta])* $name:ident {
        $(#[$about_first:meta])* $first:ident,
        $($(#[$about_value:meta])* $value:ident),+ $(,)?
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $(#[$about_first])*
            #[default]
            $first,
            $($(#[$about_value])* $value,)+
        }

        impl $name {
            /// All of them, as they are spelled.
            pub const SPELLED: &'static [&'static str] = &[stringify!($first), $(stringify!($value)),+];

            /// As it is spelled.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => stringify!($first),
                    $(Self::$value => stringify!($value),)+
                }
            }

            /// The value of a field. None: it is not known.
            pub fn parse(text: &str) -> Option<Self> {
                let known = [Self::$first, $(Self::$value),+];
                if text.is_empty() { Some(Self::$first) } else { known.into_iter().find(|value| value.as_str() == text) }
            }
        }
    };
}

values! {
    /// `spec.updateStrategy.type` of a CloneSet: what becomes of a Pod on an old revision.
    UpdateType {
        /// It is deleted and a new one is made.
        ReCreate,
        /// It is updated in place if the change allows that, else replaced.
        InPlaceIfPossible,
        /// It is updated in place, or not at all.
        InPlaceOnly,
        /// It stays until somebody deletes it.
        OnDelete,
    }
}

impl UpdateType {
    /// Whether Pods are updated in place where that is possible.
    pub fn is_in_place(self) -> bool {
        matches!(self, Self::InPlaceIfPossible | Self::InPlaceOnly)
    }
}

values! {
    /// `spec.updateStrategy.type` of a StatefulSet or DaemonSet: who begins the update of a Pod.
    SetUpdateType {
        /// The controller.
        RollingUpdate,
        /// Whoever deletes the Pod.
        OnDelete,
    }
}

values! {
    /// `spec.updateStrategy.type` of a SidecarSet: whether Pods that are there get to another image.
    SidecarUpdateType {
        /// In place.
        RollingUpdate,
        /// They stay as they are.
        NotUpdate,
    }
}

values! {
    /// `spec.completionPolicy.type` of a BroadcastJob: whether it ends.
    BroadcastCompletion {
        /// When the Pod of each node has ended.
        Always,
        /// It goes on, for nodes that join.
        Never,
    }
}

values! {
    /// `spec.failurePolicy.type` of a BroadcastJob: what happens when a Pod fails.
    BroadcastFailure {
        /// The job has failed.
        FailFast,
        /// The other nodes go on.
        Continue,
        /// The job is paused.
        Pause,
    }
}

values! {
    /// `spec.podManagementPolicy` of a StatefulSet.
    PodManagementPolicy {
        /// One Pod after the other.
        OrderedReady,
        /// All of them at once.
        Parallel,
    }
}

values! {
    /// `spec.updateStrategy.rollingUpdate.podUpdatePolicy` of a StatefulSet: how a Pod gets to another revision.
    PodUpdatePolicy {
        /// Another Pod takes its place.
        ReCreate,
        /// In place where that is possible, else another Pod.
        InPlaceIfPossible,
        /// In place or not at all.
        InPlaceOnly,
    }
}

values! {
    /// `spec.updateStrategy.rollingUpdate.rollingUpdateType` of a DaemonSet: how a Pod gets to another revision.
    RollingUpdateType {
        /// Another Pod takes its place, after it or beside it.
        Standard,
        /// In place where that is possible, else another Pod.
        InPlaceIfPossible,
        /// Of older releases: Standard with maxSurge.
        Surging,
    }
}

values! {
    /// `spec.volumeClaimUpdateStrategy.type` of a StatefulSet.
    ClaimUpdateType {
        /// Only claims that are made later have what a new template asks for.
        OnDelete,
        /// Claims grow before their Pod is updated.
        OnPodRollingUpdate,
    }
}

values! {
    /// `whenDeleted` and `whenScaled` of `spec.persistentVolumeClaimRetentionPolicy` of a StatefulSet.
    ClaimRetention {
        /// The claim stays.
        Retain,
        /// The claim goes too.
        Delete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_is_spelled_and_an_empty_one_is_the_default() {
        for spelled in UpdateType::SPELLED {
            assert_eq!(UpdateType::parse(spelled).map(UpdateType::as_str), Some(*spelled));
        }
        assert_eq!(UpdateType::SPELLED, ["ReCreate", "InPlaceIfPossible", "InPlaceOnly", "OnDelete"]);
        assert_eq!((UpdateType::parse(""), UpdateType::default()), (Some(UpdateType::ReCreate), UpdateType::ReCreate));
        assert_eq!(PodManagementPolicy::parse("parallel"), None, "case counts, as in the API server");
    }
}
