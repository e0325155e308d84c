//! The settings of `health` as what probes, watchdog and fleet are told.

use crate::config::{self, Config};
use crate::engine::admission::AdmissionSpec;
use crate::engine::generation::GenerationSpec;
use crate::engine::probe::ReadinessSpec;
use crate::engine::speculation::SpeculationSpec;
use crate::engine::watchdog::WatchdogSpec;
use crate::fleet::fencing::ErrorRule;
use crate::policy::admission::{Document, Identity};
use crate::policy::errors::ErrorLimits;
use crate::policy::health::Thresholds;
use crate::policy::progress;
use crate::policy::speculation::Limits;
use crate::types::WatchMode;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn readiness(config: &Config) -> ReadinessSpec {
    let readiness = &config.health.readiness;
    ReadinessSpec {
        path: readiness.path.clone(),
        interval: readiness.interval,
        timeout: readiness.timeout,
        thresholds: Thresholds { failures: readiness.failures, successes: readiness.successes },
        suppress_after_success: config.health.generation.suppress_after_success,
    }
}

pub(super) fn generation(config: &Config) -> GenerationSpec {
    let generation = &config.health.generation;
    GenerationSpec {
        mode: generation.mode,
        interval: generation.interval,
        timeout: generation.timeout,
        suppress_after_success: generation.suppress_after_success,
        thresholds: Thresholds { failures: generation.failures, successes: generation.successes },
        limits: limits(config),
    }
}

pub(super) fn watchdog(config: &Config) -> WatchdogSpec {
    let progress = &config.health.progress;
    WatchdogSpec { mode: progress.mode, limits: limits(config), timeout: progress.timeout }
}

pub(super) fn admission(config: &Config) -> AdmissionSpec {
    let readiness = &config.health.readiness;
    let suppress_after_success = config.health.generation.suppress_after_success;
    AdmissionSpec { timeout: readiness.timeout, failures: readiness.failures, suppress_after_success }
}

pub(super) fn speculation(config: &Config, user: Option<u32>) -> SpeculationSpec {
    let speculation = &config.health.speculation;
    SpeculationSpec {
        mode: speculation.mode,
        interval: speculation.interval,
        timeout: config.health.readiness.timeout,
        limits: Limits { windows: speculation.windows, drafts: speculation.drafts.into() },
        state_file: speculation.state_file.clone(),
        user,
    }
}

/// What an engine must be, if anything is asked of it.
pub(super) fn identity(identity: &config::Identity) -> Option<Arc<Identity>> {
    let document = identity.document.clone().zip(identity.document_sha256.as_deref().and_then(digest));
    let identity = Identity {
        model: identity.model.clone(),
        context: identity.context.map(u64::from),
        version: identity.engine_version.clone(),
        document: document.map(|(path, sha256)| Document { path, sha256 }),
    };
    (!identity.is_empty()).then(|| Arc::new(identity))
}

/// A digest in hexadecimal digits.
fn digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    for (byte, at) in digest.iter_mut().zip((0..hex.len()).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    Some(digest)
}

fn limits(config: &Config) -> progress::Limits {
    let progress = &config.health.progress;
    progress::Limits { silence_ms: millis(progress.silence), factor: progress.patience }
}

pub(super) fn error_rule(config: &Config) -> Option<ErrorRule> {
    let errors = &config.health.errors;
    let limits = ErrorLimits {
        window_ms: millis(errors.window),
        failures: errors.failures as usize,
        pause_ms: millis(errors.pause),
        successes: errors.successes,
    };
    (errors.mode != WatchMode::Off).then_some(ErrorRule { limits, fences: errors.mode == WatchMode::Fence })
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1000.0
}
