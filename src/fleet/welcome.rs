//! What somebody outside wants to know, or to decide, of every replica before it may get its first request.

use super::Fleet;
use super::replica::Replica;
use std::fmt;
use std::sync::OnceLock;

/// Called while the members change.
type Greeting = Box<dyn Fn(&Replica) + Send + Sync>;

/// Set once, if anybody wants it.
#[derive(Default)]
pub(super) struct Welcome(OnceLock<Greeting>);

impl fmt::Debug for Welcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Welcome").field(&self.0.get().is_some()).finish()
    }
}

impl Fleet {
    /// Calls `greeting` with every replica that is there, and with each that comes before it is a member. It must not change
    /// the members. Only the first such call counts.
    pub fn welcome(&self, greeting: impl Fn(&Replica) + Send + Sync + 'static) {
        let _one_at_a_time = self.changing.lock();
        let greeting = self.welcome.0.get_or_init(|| Box::new(greeting));
        self.replicas().iter().for_each(|replica| greeting(replica));
    }

    /// A replica that is about to be a member.
    pub(super) fn greet(&self, replica: &Replica) {
        if let Some(greeting) = self.welcome.0.get() {
            greeting(replica);
        }
    }
}
