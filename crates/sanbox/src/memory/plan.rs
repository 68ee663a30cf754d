//! What may be taken of the memory: the ceiling's parts, and how they give way to each other.

use std::time::Duration;

/// The longest time without a look.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// What a process takes in a millisecond at most, in bytes: 2 GiB a second, about what one core clears of fresh pages.
const GROWTH_PER_MS: u64 = (2 << 30) / 1000;
/// Least memory the program can work in.
pub(crate) const CEILING_MIN: u64 = 192 << 20;
/// What the program takes apart from data: code, tables, stacks.
const PROGRAM_BYTES: u64 = 64 << 20;

/// What is planned of the memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The whole process stays below this.
    pub(crate) ceiling: u64,
    /// Most of all caches together.
    pub(crate) caches: u64,
    /// Most of data that is changed and not on the devices yet, in all pools.
    pub(crate) dirty: u64,
    /// Most of data on its way to the devices, in all pools.
    pub(crate) writing: u64,
    /// Most of what the clients of one protocol send and are sent.
    pub(crate) clients: u64,
    /// Most of the buffers that are registered with the kernel, which then stay resident when they are free.
    pub(crate) registered: u64,
    /// Free buffers that have their memory already: what a burst of writes takes at first.
    pub(crate) ready: u64,
}

impl Plan {
    /// The plan for a ceiling.
    pub(crate) fn of(ceiling: u64) -> Self {
        let ceiling = ceiling.max(CEILING_MIN);
        let rest = ceiling - PROGRAM_BYTES;
        Self {
            ceiling,
            caches: rest / 2,
            dirty: (rest / 8).min(1 << 30),
            writing: (rest / 32).min(64 << 20),
            // One request of 32 MiB must fit in any case.
            clients: (rest / 16).clamp(48 << 20, 512 << 20),
            registered: rest / 8,
            ready: (rest / 4).min(2 << 30),
        }
    }

    /// The least of a protocol's own bound and what is planned for its clients, in bytes.
    pub(crate) fn for_clients(&self, bound: usize) -> usize {
        usize::try_from(self.clients).map_or(bound, |planned| planned.min(bound))
    }

    /// What the process should not take more than for long: a part is left for what is allocated between two looks.
    pub(super) fn high(&self) -> u64 {
        self.ceiling / 100 * 80
    }

    /// Whether a process of this size may take memory ahead of need: that is what it gives back first, so not close to the ceiling.
    pub(super) fn may_prefault(&self, process: u64) -> bool {
        process < self.ceiling / 100 * 40
    }

    /// How long a process of this size need not be looked at: the time in which it may come to take too much, between `least` and
    /// [`LOOK_AT_LEAST_EVERY`].
    pub(super) fn quiet(&self, process: u64, least: Duration) -> Duration {
        let headroom = self.high().saturating_sub(process);
        Duration::from_millis(headroom / GROWTH_PER_MS).clamp(least, LOOK_AT_LEAST_EVERY)
    }

    /// The most the caches may take now, in bytes, from what they take and the process takes.
    pub(super) fn press(
        &self,
        caches_now: u64,
        limit_now: u64,
        process: u64,
        caches_max: u64,
    ) -> u64 {
        let high = self.high();
        let low = self.ceiling / 100 * 70;
        let least = self.ceiling / 32;
        if process > high {
            // What is freed may take a moment to be gone; ask for what is missing, not for more each time.
            let over = (process - high).min(self.ceiling / 16);
            return caches_now.min(limit_now).saturating_sub(over).max(least);
        }
        if process < low && caches_now + self.ceiling / 32 > limit_now {
            return (limit_now + self.ceiling / 64).min(caches_max);
        }
        limit_now.min(caches_max)
    }
}

/// Bytes of memory the process has now; `None` where the kernel does not say.
pub(crate) fn process_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// The memory of this machine, or of the container if that is less, in bytes.
pub(crate) fn available() -> Option<u64> {
    let machine = meminfo("MemTotal:");
    machine.into_iter().chain(container()).min()
}

/// Whether other programs of the machine have enough left, should memory be taken ahead of need: a quarter of it.
pub(super) fn machine_has_spare() -> bool {
    let (total, available) = (meminfo("MemTotal:"), meminfo("MemAvailable:"));
    total
        .zip(available)
        .is_some_and(|(total, available)| available > total / 4)
}

/// A value of `/proc/meminfo`, in bytes.
fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The least limit of the control groups this process is in (version 2; `max` is none), in bytes. Above `memory.high` a process
/// is held up, so it counts as a limit.
fn container() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/");
    let mut limits = Vec::new();
    for group in std::path::Path::new(own).ancestors() {
        let group = group.strip_prefix("/").unwrap_or(group);
        let group = std::path::Path::new("/sys/fs/cgroup").join(group);
        for file in ["memory.max", "memory.high"] {
            let limit = std::fs::read_to_string(group.join(file)).ok();
            limits.extend(limit.and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    // Version 1.
    let old = std::fs::read_to_string("/sys/fs/cgroup/memory/memory.limit_in_bytes").ok();
    limits.extend(old.and_then(|text| text.trim().parse::<u64>().ok()));
    limits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_plan_fit_below_its_ceiling() {
        for ceiling in [0, 256 << 20, 512 << 20, 1 << 30, 64 << 30_u64] {
            let plan = Plan::of(ceiling);
            assert!(plan.caches + plan.dirty + plan.writing + PROGRAM_BYTES < plan.ceiling);
            assert!(plan.may_prefault(PROGRAM_BYTES) && !plan.may_prefault(plan.high()));
            let ahead = plan.ceiling / 100 * 40 + plan.ready;
            assert!(ahead < plan.high(), "nothing has to be given back for it");
        }
    }

    #[test]
    fn caches_give_way_when_the_process_is_close_to_its_ceiling_and_grow_when_it_is_not() {
        let plan = Plan::of(1 << 30);
        let mib = |count: u64| count << 20;
        let pressed = plan.press(mib(500), mib(500), mib(950), plan.caches);
        assert!(pressed < mib(450) && pressed > mib(400));
        let grown = plan.press(mib(200), mib(200), mib(300), plan.caches);
        assert_eq!(grown, mib(216));
        assert_eq!(
            plan.press(mib(100), mib(300), mib(300), plan.caches),
            mib(300)
        );
        assert_eq!(plan.press(mib(100), mib(300), mib(300), mib(50)), mib(50));
        assert!(available().is_none_or(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn an_idle_process_is_looked_at_rarely_and_one_close_to_its_ceiling_often() {
        const LEAST: Duration = Duration::from_millis(25);
        let plan = Plan::of(8 << 30);
        let mib = |count: u64| count << 20;
        assert_eq!(plan.quiet(mib(100), LEAST), LOOK_AT_LEAST_EVERY);
        assert_eq!(plan.quiet(plan.high(), LEAST), LEAST);
        assert_eq!(plan.quiet(plan.ceiling, LEAST), LEAST);
        let near = plan.quiet(plan.high() - mib(1024), LEAST);
        assert!(near > LEAST && near < LOOK_AT_LEAST_EVERY);
    }
}
