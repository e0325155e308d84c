//! A scripted name server: it answers with what the test says, from one moment to the next.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// Records by name and type; the code with which everything is answered, if there is one.
#[derive(Default)]
struct Zone {
    records: BTreeMap<(String, u16), Vec<Vec<u8>>>,
    fails: Option<u8>,
    asked: usize,
    /// Whether nothing is answered.
    is_held: bool,
}

/// A listening name server; stops on drop.
pub(crate) struct Dns {
    pub(crate) addr: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    task: JoinHandle<()>,
}

impl Dns {
    pub(crate) async fn start() -> Dns {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (addr, zone) = (socket.local_addr().unwrap(), Arc::<Mutex<Zone>>::default());
        let task = tokio::spawn(serve(socket, zone.clone()));
        Dns { addr, zone, task }
    }

    /// The addresses of a name from now on.
    pub(crate) fn addresses(&self, name: &str, addresses: &[&str]) {
        let (mut four, mut six) = (Vec::new(), Vec::new());
        for address in addresses {
            match address.parse::<IpAddr>().unwrap() {
                IpAddr::V4(ip) => four.push(ip.octets().to_vec()),
                IpAddr::V6(ip) => six.push(ip.octets().to_vec()),
            }
        }
        let mut zone = self.zone.lock().unwrap();
        zone.records.insert((name.to_owned(), A), four);
        zone.records.insert((name.to_owned(), AAAA), six);
    }

    /// The services of a name: hosts and ports.
    pub(crate) fn services(&self, name: &str, services: &[(&str, u16)]) {
        let record = |(host, port): &(&str, u16)| {
            let mut data = vec![0, 1, 0, 1];
            data.extend(port.to_be_bytes());
            for label in host.split('.') {
                data.push(u8::try_from(label.len()).unwrap());
                data.extend(label.as_bytes());
            }
            data.push(0);
            data
        };
        self.zone.lock().unwrap().records.insert((name.to_owned(), SRV), services.iter().map(record).collect());
    }

    /// Answers everything with this error from now on, or no longer.
    pub(crate) fn fails(&self, code: Option<u8>) {
        self.zone.lock().unwrap().fails = code;
    }

    /// Answers nothing from now on, or what was asked meanwhile and all else again.
    pub(crate) fn hold(&self, is_held: bool) {
        self.zone.lock().unwrap().is_held = is_held;
    }

    /// Questions so far.
    pub(crate) fn asked(&self) -> usize {
        self.zone.lock().unwrap().asked
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(socket: UdpSocket, zone: Arc<Mutex<Zone>>) {
    let mut message = [0; 512];
    loop {
        let (length, from) = socket.recv_from(&mut message).await.unwrap();
        let answer = zone.lock().unwrap().answer(&message[..length]);
        super::until("name server goes on", || async { !zone.lock().unwrap().is_held }).await;
        socket.send_to(&answer, from).await.unwrap();
    }
}

impl Zone {
    fn answer(&mut self, question: &[u8]) -> Vec<u8> {
        self.asked += 1;
        let (mut at, mut labels) = (12, Vec::new());
        while question[at] > 0 {
            let end = at + 1 + usize::from(question[at]);
            labels.push(std::str::from_utf8(&question[at + 1..end]).unwrap());
            at = end;
        }
        let kind = u16::from_be_bytes([question[at + 1], question[at + 2]]);
        let records = self.records.get(&(labels.join("."), kind)).filter(|_| self.fails.is_none());
        let records = records.cloned().unwrap_or_default();
        let mut out = question.to_vec();
        out[2] |= 0x80;
        out[3] = self.fails.unwrap_or(0);
        out[7] = u8::try_from(records.len()).unwrap();
        for data in records {
            out.extend([0xc0, 12]);
            out.extend(kind.to_be_bytes());
            out.extend([0, 1, 0, 0, 0, 60]);
            out.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
            out.extend(data);
        }
        out
    }
}
