//! Seeds that once failed. One file each, named by topic and seed, opening with the story of the bug.

mod addition_cut_short_247;
mod attribute_without_a_record_51;
mod bad_label_255;
mod bad_label_70;
mod damaged_attribute_5447;
mod damaged_file_of_two_names_5548;
mod damaged_groups_of_a_draid_7918;
mod export_of_a_full_pool_79;
mod failing_log_device_112;
mod hanging_disk_123;
mod hanging_disk_39;
mod import_meets_a_rebuild_189;
mod large_hole_sent_raw_171;
mod log_block_set_aside_302;
mod padding_mended_without_a_disk_10162;
mod renamed_snapshot_of_a_rotation_400507;
mod reopened_by_two_250348;
mod replacement_meets_a_scan_130;
mod resilver_after_a_detach_14775;
mod returning_disk_100;
mod returning_disk_121;
mod small_records_fill_a_pool_1976;
mod unwritten_log_data_6510;
mod write_of_an_earlier_boot_203867;
