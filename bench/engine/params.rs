//! What a simulated engine is made of. One struct is both the command line and the model, so a default is said once.
//!
//! The defaults describe a replica of a large mixture-of-experts model on a few data-centre GPUs.

use clap::Args;

/// The model of one engine. Times are virtual.
#[derive(Args, Clone, Debug)]
pub(crate) struct Params {
    /// virtual seconds per real second
    #[arg(long, default_value_t = 1.0)]
    pub(crate) time_scale: f64,
    /// bytes of rendered prompt per token: close to what tokenizers reach on English and code
    #[arg(long, default_value_t = 4)]
    pub(crate) bytes_per_token: usize,
    /// tokens per cache block: vLLM's default
    #[arg(long, default_value_t = 16)]
    pub(crate) block_tokens: usize,
    /// tokens the KV cache holds: an 8-GPU box with fp8 KV and a compressed-attention model
    #[arg(long, default_value_t = 4_900_000)]
    pub(crate) kv_tokens: usize,
    /// prompt tokens read per second: 4k to 10k is usual for a large MoE model
    #[arg(long, default_value_t = 8000.0)]
    pub(crate) prefill_rate: f64,
    /// prompt tokens read between two decode steps: vLLM's and SGLang's chunked prefill
    #[arg(long, default_value_t = 2048)]
    pub(crate) chunk_tokens: usize,
    /// requests being read or decoded at once: vLLM's default
    #[arg(long, default_value_t = 256)]
    pub(crate) max_running: usize,
    /// requests that may wait; more are refused with 503 and Retry-After (default: no limit)
    #[arg(long)]
    pub(crate) max_queue: Option<usize>,
    /// one decode step of an empty batch, in ms
    #[arg(long, default_value_t = 12.0)]
    pub(crate) step_ms: f64,
    /// what each running sequence adds to a step, in ms
    #[arg(long, default_value_t = 0.15)]
    pub(crate) step_growth_ms: f64,
    /// the longest prompt and answer together; a longer prompt is refused with 400
    #[arg(long, default_value_t = 262_144)]
    pub(crate) max_context: usize,
    /// most events per real second and stream; tokens in between share an event, as in real engines
    #[arg(long, default_value_t = 50.0)]
    pub(crate) events_per_s: f64,
    /// the model name it serves
    #[arg(long, default_value = "sim")]
    pub(crate) model: String,
}

impl Params {
    /// Refuses what would divide by zero or never end.
    pub(crate) fn check(&self) -> Result<(), String> {
        let positive = [
            ("--time-scale", self.time_scale),
            ("--prefill-rate", self.prefill_rate),
            ("--step-ms", self.step_ms),
            ("--events-per-s", self.events_per_s),
            ("--bytes-per-token", self.bytes_per_token as f64),
            ("--block-tokens", self.block_tokens as f64),
            ("--chunk-tokens", self.chunk_tokens as f64),
            ("--max-running", self.max_running as f64),
        ];
        match positive.iter().find(|(_, value)| !value.is_finite() || *value <= 0.0) {
            Some((flag, value)) => Err(format!("{flag} {value}: must be above 0")),
            None if !self.step_growth_ms.is_finite() || self.step_growth_ms < 0.0 => {
                Err(format!("--step-growth-ms {}: must not be negative", self.step_growth_ms))
            }
            None => Ok(()),
        }
    }

    /// Bytes of rendered text in one cache block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_tokens * self.bytes_per_token
    }

    /// The shipped defaults, for tests.
    #[cfg(test)]
    pub(crate) fn shipped() -> Self {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            params: Params,
        }
        Line::parse_from(["engine"]).params
    }
}
