//! The settings of `health` as what probes, watchdog and fleet are told.

use crate::config::Config;
use crate::engine::generation::GenerationSpec;
use crate::engine::probe::ReadinessSpec;
use crate::engine::watchdog::WatchdogSpec;
use crate::fleet::fencing::ErrorRule;
use crate::policy::errors::ErrorLimits;
use crate::policy::health::Thresholds;
use crate::policy::progress;
use crate::types::WatchMode;
use std::time::Duration;

pub(super) fn readiness(config: &Config) -> ReadinessSpec {
    let readiness = &config.health.readiness;
    ReadinessSpec {
        path: readiness.path.clone(),
        every_ms: millis(readiness.interval),
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
