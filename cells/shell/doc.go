// Package shell lets an operator look into the running agent: any table, maps, health, and what the cells' own commands
// print.
//
// It runs hive's script engine behind a unix socket that only root may open. It reads whatever its commands read, writes no
// table and owns nothing in the kernel but its socket, which the next run replaces. No command runs programs, reads or
// writes files, starts or stops the agent, or writes tables: the engine's own commands are left out but for help, of
// statedb's those that read are let in by name, and flags that write files or delete rows are refused.
package shell
