//! The daemon's entry: arguments, configuration, run.

use ramjet::cli::{Cli, Command, in_one_line};
use ramjet::config::{self, Loaded, Sources};
use ramjet::server;
use ramjet::telemetry::moment::Moment;
use ramjet::telemetry::outlet::LogPipe;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

/// Takes less time than the system's, and gives memory back while it works.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// `EX_USAGE` of sysexits.h: the configuration or the command line is wrong.
const BAD_CONFIGURATION: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::of_process() {
        Ok(cli) => cli,
        Err(e) if e.use_stderr() => {
            eprintln!("ramjet: {}", in_one_line(&e));
            return ExitCode::from(BAD_CONFIGURATION);
        }
        Err(page) => return print(&page.to_string()),
    };
    match &cli.command {
        None if cli.test => configured(&cli),
        None => {
            server::hold_hangups();
            configured(&cli)
        }
        Some(Command::Reference) => print(&config::reference()),
        Some(Command::Upgrade) => configured(&cli),
        Some(Command::Replay(replay)) => match replay.page() {
            Ok(page) => print(&page),
            Err(e) => {
                eprintln!("ramjet: {e}");
                ExitCode::from(e.code())
            }
        },
        Some(Command::Explain(request)) => match request.page(cli.admin.as_deref()) {
            Ok(page) => print(&page),
            Err(e) => {
                eprintln!("ramjet: {e}");
                ExitCode::from(e.code())
            }
        },
    }
}

/// To stdout; a reader that has seen enough is no error.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

/// Tests, upgrades to or serves what is configured.
fn configured(cli: &Cli) -> ExitCode {
    let env = config::environment();
    let sources = Sources {
        file: cli.config.as_deref(),
        upstream: cli.upstream.as_deref(),
        listen: cli.listen.as_deref(),
        admin: cli.admin.as_deref(),
        env: &env,
    };
    match config::load(&sources) {
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(BAD_CONFIGURATION)
        }
        Ok(loaded) if cli.test => {
            loaded.warnings.iter().for_each(|w| eprintln!("{w}"));
            println!("the configuration is good");
            ExitCode::SUCCESS
        }
        Ok(loaded) if matches!(cli.command, Some(Command::Upgrade)) => match server::upgrade(&loaded.config, cli) {
            Ok(done) => print(&done),
            Err(e) => {
                eprintln!("ramjet: {e}");
                ExitCode::from(e.code())
            }
        },
        Ok(loaded) => serve(&loaded, cli),
    }
}

fn serve(loaded: &Loaded, cli: &Cli) -> ExitCode {
    start_log();
    loaded.warnings.iter().for_each(|w| log::warn!("{w}"));
    match server::run(loaded, cli) {
        Ok(never) => match never {},
        Err(e) => {
            eprintln!("ramjet: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Whether stderr is the system's journal: it tells whom it started by device and inode, and who was started by those finds the
/// same in its environment, wherever its own stderr leads.
fn is_journal() -> bool {
    let is_it = || {
        let said = std::env::var("JOURNAL_STREAM").ok()?;
        let stderr = std::fs::File::from(std::io::stderr().as_fd().try_clone_to_owned().ok()?).metadata().ok()?;
        Some(said == format!("{}:{}", stderr.dev(), stderr.ino()))
    };
    is_it().unwrap_or(false)
}

/// To stderr, filtered by `RUST_LOG`. Access lines stand bare, so that each is one JSON document. The others begin with the
/// time, but where the system's journal notes it.
fn start_log() {
    let is_dated = !is_journal();
    let filter = env_logger::Env::default().default_filter_or("warn,ramjet=info,access=info");
    let line = move |out: &mut env_logger::fmt::Formatter, record: &log::Record<'_>| match record.target() {
        "access" => writeln!(out, "{}", record.args()),
        target if is_dated => writeln!(out, "{} {} {target}: {}", Moment::now(), record.level(), record.args()),
        target => writeln!(out, "{} {target}: {}", record.level(), record.args()),
    };
    let mut log = env_logger::Builder::from_env(filter);
    // what these crates say below this level contains heads and paths of requests
    for target in ["pingora_core", "pingora_proxy", "h2", "hyper"] {
        log.filter_module(target, log::LevelFilter::Warn);
    }
    // it repeats what the probe says
    log.filter_module("pingora_load_balancing", log::LevelFilter::Error);
    log.format(line).target(env_logger::Target::Pipe(Box::new(LogPipe))).init();
}
