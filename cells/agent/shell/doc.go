// Package shell gives operators read access to the running agent: tables, maps, health, and the output of commands of the cells.
//
// It runs the script engine of hive on a unix socket that only root may open. Tables in: none by their types; commands read each table by its name. Tables out:
// none. It owns only the socket, which the next run replaces. No command runs programs, reads or writes files, starts or stops the agent, or writes tables: of
// the commands of the engine only help is available, of the commands of statedb only a list of read-only ones, and flags that write files or delete rows are
// rejected.
package shell
