//! The hashes that Kubernetes and OpenKruise write into names and annotations.

/// FNV-1, 32 bits: of revision data.
pub fn fnv1_32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

/// FNV-1, 64 bits: of what must not collide.
pub fn fnv1_64(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// FNV-1a, 32 bits: of container definitions.
pub fn fnv1a_32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A number in the letters that cannot form a word: the decimal digits 0 to 9 become `4 5 6 7 8 9 b c d f`.
pub fn safe_encode(number: impl Into<u64>) -> String {
    number.into().to_string().bytes().map(|digit| char::from(b"456789bcdf"[usize::from(digit - b'0')])).collect()
}

/// The hash that kubelet stores of a container's definition and that OpenKruise uses for its own annotations: FNV-1a over
/// the way Go prints a slice of bytes.
pub fn deep_hash(json: &[u8]) -> u64 {
    let numbers: Vec<String> = json.iter().map(u8::to_string).collect();
    fnv1a_32(format!("([]uint8)[{}]", numbers.join(" ")).into_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_hashes() {
        for (json, want) in [
            ("null", 86_995_377),
            (r#"{"image":"nginx:1.18","name":"main"}"#, 2_316_638_273),
            (r#"{"image":"docker.io/library/busybox:1.34","name":"main"}"#, 579_339_528),
            (r#"{"image":"docker.io/library/busybox:1.35","name":"main"}"#, 872_985_327),
            (r#"{"image":"docker.io/library/busybox:1.33","name":"second"}"#, 3_054_229_298),
            (r#"{"image":"docker.io/library/busybox:1.34","name":"second"}"#, 1_652_700_943),
            (r#"{"image":"docker.io/library/busybox:1.34","name":"first"}"#, 406_023_336),
            (r#"{"image":"docker.io/library/busybox:1.34","name":"agent"}"#, 2_708_146_634),
            (r#"{"image":"docker.io/library/busybox:1.35","name":"agent"}"#, 1_900_982_469),
            (r#"[{"name":"CFG","value":"{\"k\":\"v\u003c1\u003e\"}"}]"#, 2_276_098_488),
            (r#"[{"name":"CFG","value":"{\"k\":\"v2\"}"}]"#, 457_809_478),
            (
                r#"[{"metadata":{"name":"data","creationTimestamp":null},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},"storageClassName":"none"},"status":{}}]"#,
                1_793_648_801,
            ),
        ] {
            assert_eq!(deep_hash(json.as_bytes()), want, "{json}");
        }
    }

    #[test]
    fn of_64_bits_the_known_values() {
        for (text, want) in [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_bd4c_8601_b7be)] {
            assert_eq!(fnv1_64(text.bytes()), want, "{text}");
        }
        assert_eq!(safe_encode(u64::MAX).len(), 20);
    }

    #[test]
    fn digits_become_letters_that_form_no_word() {
        assert_eq!(safe_encode(1_234_567_890_u32), "56789bcdf4");
        assert_eq!(safe_encode(0_u64), "4");
    }
}
