//! Processor time, so that a run can say whether the machine had any to spare.

/// Processor time a process has used so far, in seconds: a process id, or `self`. 0 where /proc does not say.
pub(crate) fn cpu_seconds(process: &str) -> f64 {
    // Linux counts in hundredths
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Processors we may use.
pub(crate) fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}
