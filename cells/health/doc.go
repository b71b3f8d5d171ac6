// Package health shows what the modules say of themselves and how long the agent took to start.
//
// It provides the health reporter of each module ([hive.HealthSource]) and writes two tables: "health", one row for each
// component that has reported, and "bootstrap", one row for each start hook. It reads no table and owns nothing in the
// kernel. After a restart both tables begin empty.
//
// Only changes are written: a report that repeats the level, the message and the error of the row is dropped. A scope
// that closes takes its rows along, except those that say Degraded: what broke last must not vanish with its job.
package health
