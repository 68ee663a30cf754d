//! Memory of large buffers goes back to the kernel with them. A process of its own, whose memory nothing else changes.

use runtime::IoBufMut;

/// Bytes of anonymous memory the process has.
fn anonymous_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel's counts");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1));
    kib.expect("RssAnon").parse::<usize>().expect("a number") << 10
}

#[test]
fn memory_of_large_buffers_goes_back_with_them() {
    const LARGE: usize = 16 << 20;
    let use_and_keep_little = |_| {
        let mut kept = Vec::new();
        for round in 1..=8_u8 {
            let mut large = IoBufMut::zeroed(LARGE - usize::from(round) * 4096);
            assert!(large.iter().all(|&byte| byte == 0));
            large.fill(round);
            // What lies behind a large block of the heap keeps it there.
            kept.push(vec![round; 64 << 10]);
            let large = large.freeze();
            assert!(large.is_aligned_to(runtime::ALIGNMENT) && large[large.len() - 1] == round);
        }
        kept
    };
    let before = anonymous_bytes();
    let threads = (0..4).map(|thread| std::thread::spawn(move || use_and_keep_little(thread)));
    let threads: Vec<_> = threads.collect();
    let kept = threads
        .into_iter()
        .map(|thread| thread.join().expect("no panic"));
    let kept: Vec<Vec<Vec<u8>>> = kept.collect();
    let more = anonymous_bytes().saturating_sub(before);
    assert!(more < LARGE, "{} KiB stay", more >> 10);
    assert_eq!(kept.len(), 4);
}
