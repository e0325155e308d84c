//! What the dashboard shows besides the fleet and the decisions: the last day, the beginnings that prompts share, and the
//! configuration in force. Each has a place of its own below `/api/`.

use super::json::document;
use super::{Admin, Answer, explain, query, series};
use crate::telemetry::history::Span;
use http::Method;
use pingora_http::RequestHeader;

/// Beginnings that are listed.
const TRUNKS: usize = 100;

/// One setting, as far as it may be shown.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its place, such as `routing.policy`.
    pub path: String,
    /// Its value, as YAML.
    pub value: String,
    /// Its default; empty where there is none.
    pub default: String,
}

/// Tells the settings in force.
pub type Settings = Box<dyn Fn() -> Vec<Setting> + Send + Sync>;

impl Admin {
    /// What one of these places answers; `None` if it is none of them.
    pub(super) fn watched(&self, head: &RequestHeader, place: &str) -> Option<Answer> {
        let answer: fn(&Admin, &RequestHeader) -> Answer = match place {
            "series" => Admin::series,
            "prefixes" => |admin, _| Answer::json(admin.prefixes()),
            "config" => |admin, _| Answer::json(admin.settings()),
            _ => return None,
        };
        let is_read = matches!(head.method, Method::GET | Method::HEAD);
        Some(if is_read { answer(self, head) } else { Answer::error(405, "only GET is allowed here") })
    }

    fn series(&self, head: &RequestHeader) -> Answer {
        if let Some(name) = query(head, "replica") {
            let name = super::drain::decoded(name).unwrap_or_default();
            return series::of_replica(&self.seen.history, &name)
                .map_or_else(|| Answer::error(404, "nothing is known of such a replica"), Answer::json);
        }
        let span = match query(head, "span") {
            None | Some("hour") => Span::Hour,
            Some("day") => Span::Day,
            Some(_) => return Answer::error(400, "span is hour or day"),
        };
        Answer::json(series::of_fleet(&self.seen.history, span))
    }

    fn prefixes(&self) -> String {
        let members = self.fleet.replicas();
        let block_bytes = self.fleet.params().load.block_bytes;
        document(|o| {
            let (bytes, blocks) = self.fleet.index_size();
            o.plain("index_bytes", bytes);
            o.plain("index_blocks", blocks);
            o.plain("block_bytes", block_bytes);
            o.list("trunks", self.seen.trunks.most_shared(TRUNKS), |o, trunk| {
                o.text("name", &*format!("{:016x}", trunk.print));
                o.plain("blocks", trunk.blocks);
                o.plain("bytes", u64::from(trunk.blocks) * block_bytes);
                o.plain("uses", trunk.uses);
                o.plain("sessions", trunk.sessions);
                o.plain("last_used", trunk.last);
                let holders = self.fleet.holders(trunk.print);
                let names: Vec<String> = holders.iter().map(|id| explain::name(&members, *id).to_owned()).collect();
                o.texts("holders", &names);
            });
        })
    }

    fn settings(&self) -> String {
        let settings = self.settings.as_ref().map_or_else(Vec::new, |settings| settings());
        document(|o| {
            o.plain("generation", self.metrics.generation());
            o.list("settings", &settings, |o, setting| {
                o.text("path", &*setting.path);
                o.text("value", &*setting.value);
                o.text("default", &*setting.default);
            });
        })
    }
}
