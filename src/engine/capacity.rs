//! How many tokens an engine's KV cache holds, as far as its metrics tell. Pure.
//!
//! | engine | metric |
//! |---|---|
//! | vLLM | labels `num_gpu_blocks` and `block_size` of `vllm:cache_config_info`; one series an engine, so one a rank |
//! | SGLang | `sglang:max_total_num_tokens` |
//!
//! Others do not say; their capacity is learned from the cached tokens that they report.

use super::samples::{is_of_rank, label};

/// Where engines expose metrics.
pub const METRICS: &str = "/metrics";

/// Tokens that the cache of an engine, or of one of its data-parallel ranks, holds, from its metrics in Prometheus' text
/// format. `None` where it does not tell.
pub fn capacity(metrics: &str, rank: Option<u32>) -> Option<u32> {
    let mut found: Vec<(&str, u32)> = Vec::new();
    for line in metrics.lines() {
        if let Some(labels) = line.strip_prefix("vllm:cache_config_info{") {
            let blocks = label(labels, "num_gpu_blocks").and_then(|n| n.parse().ok());
            let tokens = label(labels, "block_size").and_then(|n| n.parse().ok());
            let total = blocks.zip(tokens).and_then(|(b, t): (u32, u32)| b.checked_mul(t));
            found.extend(total.map(|total| (labels, total)));
        } else if let Some(rest) = line.strip_prefix("sglang:max_total_num_tokens") {
            let value = rest.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok());
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
            let total = value.filter(|n| (1.0..4e9).contains(n)).map(|n| n as u32);
            found.extend(total.map(|total| (rest, total)));
        }
    }
    found.retain(|(_, total)| *total > 0);
    // several engines behind one address: each rank has its own series
    let is_own = |labels: &str| rank.is_some_and(|rank| is_of_rank(labels, rank));
    let mine = found.iter().find(|(labels, _)| is_own(labels)).or(found.first())?;
    Some(mine.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: &str = "# TYPE vllm:cache_config_info gauge\n\
        vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\",num_gpu_blocks=\"1000\",num_gpu_blocks_override=\"None\"} 1.0\n\
        vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"1\",num_gpu_blocks_override=\"7\",num_gpu_blocks=\"2000\"} 1.0\n\
        vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n";

    #[test]
    fn engines_that_tell_are_understood() {
        assert_eq!(capacity(VLLM, None), Some(16_000));
        assert_eq!((capacity(VLLM, Some(1)), capacity(VLLM, Some(9))), (Some(32_000), Some(16_000)));
        let sglang = "sglang:max_total_num_tokens{model_name=\"m\",dp_rank=\"3\"} 423456.0\n";
        assert_eq!((capacity(sglang, None), capacity(sglang, Some(3))), (Some(423_456), Some(423_456)));
    }

    #[test]
    fn those_that_do_not_are_unknown() {
        for text in [
            "",
            "llamacpp:kv_cache_tokens 7",
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0",
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"0\"} 1.0",
            "vllm:cache_config_info{num_gpu_blocks=\"4294967295\",block_size=\"4294967295\"} 1.0",
            "vllm:cache_config_info{",
            "sglang:max_total_num_tokens NaN",
        ] {
            assert_eq!(capacity(text, None), None, "{text}");
        }
    }
}
