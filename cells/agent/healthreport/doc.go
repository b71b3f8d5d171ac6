// Package healthreport publishes the health of modules and the start-up times of the agent.
//
// It provides the health reporter of each module ([hive.HealthSource]). Tables in: none. Tables out: health (a row for each component that has reported),
// bootstrap (a row for each start hook). It owns nothing in the kernel. After a restart both tables begin empty.
//
// Only changes are written: a report with the level, the message and the error of the row is dropped. A new message of a component that stays OK is
// written within a second, together with those of other components; all other changes are written at once. A closed scope loses its rows, except
// Degraded ones: the last error of a job must survive the job.
package healthreport
