//! The last day as JSON: lists of equal length, a member for each line of a chart.

use super::json::{Object, document};
use crate::telemetry::history::{AtReplica, History, Point, Span, Sums};

/// `n` of something in the time that a point was watched.
fn rate(n: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| n / seconds)
}

fn share(part: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| part / of)
}

/// A list of times and one of values for each name.
type Lines<'a, T> = &'a [(&'a str, &'a dyn Fn(&Point<T>) -> Option<f64>)];

fn lines<T>(o: &mut Object<'_>, step: u64, points: &[Point<T>], lines: Lines<'_, T>) {
    o.plain("step_s", step);
    #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit a float")]
    o.numbers("at", points.iter().map(|p| Some(p.at as f64)));
    o.object("values", Some(()), |o, ()| {
        for (name, value) in lines {
            o.numbers(name, points.iter().map(value));
        }
    });
}

/// The fleet's day, or its last hour.
pub(super) fn of_fleet(history: &History, span: Span) -> String {
    let (step, points) = history.series(span);
    let ttft = |q: f64| move |p: &Point<Sums>| history.quantile(q, &p.sums.ttft).map(|s| s * 1000.0);
    let mean = |of: fn(&Point<Sums>) -> f64| move |p: &Point<Sums>| share(of(p), p.samples);
    document(|o| {
        lines(
            o,
            step,
            &points,
            &[
                ("requests_per_s", &|p| rate(p.sums.counts.requests, p.seconds)),
                ("errors_per_s", &|p| rate(p.sums.counts.errors, p.seconds)),
                ("left_per_s", &|p| rate(p.sums.counts.left, p.seconds)),
                ("shed_per_s", &|p| rate(p.sums.counts.shed, p.seconds)),
                ("prompt_tokens_per_s", &|p| rate(p.sums.counts.prompt_tokens, p.seconds)),
                ("output_tokens_per_s", &|p| rate(p.sums.counts.output_tokens, p.seconds)),
                ("cached_share", &cached_share),
                ("predicted_share", &predicted_share),
                ("ttft_p50_ms", &ttft(0.5)),
                ("ttft_p95_ms", &ttft(0.95)),
                ("in_flight", &mean(|p| p.sums.gauges.in_flight)),
                ("waiting", &mean(|p| p.sums.gauges.waiting)),
                ("healthy", &mean(|p| p.sums.gauges.healthy)),
                ("replicas", &mean(|p| p.sums.gauges.replicas)),
            ],
        );
    })
}

/// Prompt tokens of answers that said how many were cached.
fn told(p: &Point<Sums>) -> f64 {
    p.sums.counts.uncached_tokens + p.sums.counts.cached_tokens
}

fn cached_share(p: &Point<Sums>) -> Option<f64> {
    share(p.sums.counts.cached_tokens, told(p))
}

fn predicted_share(p: &Point<Sums>) -> Option<f64> {
    share(p.sums.counts.predicted_tokens, told(p))
}

/// The day of one replica; `None` if nobody knows it.
pub(super) fn of_replica(history: &History, name: &str) -> Option<String> {
    let (step, points) = history.of_replica(name)?;
    let all: Lines<'_, AtReplica> = &[
        ("up_share", &|p| share(p.sums.healthy, p.samples)),
        ("in_flight", &|p| share(p.sums.in_flight, p.samples)),
        ("prompt_tokens_per_s", &|p| rate(p.sums.prompt_tokens, p.seconds)),
        ("cached_share", &|p| share(p.sums.cached_tokens, p.sums.prompt_tokens)),
    ];
    Some(document(|o| {
        o.text("replica", name);
        lines(o, step, &points, all);
    }))
}

/// The last minute in numbers.
pub(super) fn now(o: &mut Object<'_>, history: &History, now: f64) {
    let p = history.now(now);
    let counts = &p.sums.counts;
    o.number("seconds", p.seconds);
    o.number("requests_per_s", rate(counts.requests, p.seconds));
    o.number("errors_per_s", rate(counts.errors, p.seconds));
    o.number("error_share", share(counts.errors, counts.requests));
    o.number("left_per_s", rate(counts.left, p.seconds));
    o.number("shed_per_s", rate(counts.shed, p.seconds));
    o.number("ttft_p50_ms", history.quantile(0.5, &p.sums.ttft).map(|s| s * 1000.0));
    o.number("ttft_p95_ms", history.quantile(0.95, &p.sums.ttft).map(|s| s * 1000.0));
    o.number("cached_share", cached_share(&p));
    o.number("predicted_share", predicted_share(&p));
    o.number("prompt_tokens_per_s", rate(counts.prompt_tokens, p.seconds));
    o.number("output_tokens_per_s", rate(counts.output_tokens, p.seconds));
    o.number("waiting", share(p.sums.gauges.waiting, p.samples));
}
