package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/hive"
)

// hiveCommand prints the hive without starting it. It uses the agent's flags, so that it prints the hive that would run.
func (a *agent) hiveCommand() *cobra.Command {
	show := &cobra.Command{
		Use:   "hive",
		Short: "Print cells with their provided types, configuration and hooks; start nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.populate(cmd); err != nil {
				return err
			}
			return a.hive.PrintObjects(a.stdout, slog.New(slog.DiscardHandler))
		},
	}
	show.AddCommand(&cobra.Command{
		Use:   "dot-graph",
		Short: "Print the graph of constructors for graphviz; start nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.populate(cmd); err != nil {
				return err
			}
			return a.hive.PrintDotGraph()
		},
	})
	return show
}

func (a *agent) populate(cmd *cobra.Command) error {
	if _, err := a.prepare(cmd); err != nil {
		return err
	}
	if err := hive.Populate(a.hive, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	return nil
}
