#!/usr/bin/env bash
# zoo on Slurm: two nodes, a Ray cluster for the job, 62 runners; requeued by the scheduler, the run goes on.
#
#     sbatch examples/cluster/slurm.sh halfcheetah_ppo
#
# An example to change: it was not tried on a cluster.
#SBATCH --job-name=zoo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -euo pipefail

config=${1:-cartpole_ppo}
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # since Slurm 22.05 srun does not take it from sbatch by itself
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=6379

# Ray: its head on the first node, a worker on each other one; all end with the job.
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port=$port --num-cpus="$SLURM_CPUS_PER_TASK" --block &
until ray status --address="$head:$port" >/dev/null 2>&1; do sleep 2; done
if ((SLURM_JOB_NUM_NODES > 1)); then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
        ray start --address="$head:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
fi

# --run makes the folder at the first start and continues in it after a requeue. SIGUSR1, two minutes before the end,
# saves the state and ends the run; the scheduler starts the same command again.
srun --nodes=1 --ntasks=1 --overlap -w "$head" zoo train "$config" --run "runs/slurm_$SLURM_JOB_ID" \
    env.collector_env_num=248 policy.collect.n_step=32 max_env_step=10_000_000 \
    cluster.engine=ray cluster.address="$head:$port" cluster.runner_num=62 cluster.max_lag=1 &
training=$!
trap 'kill -USR1 $training; wait $training || true; scontrol requeue "$SLURM_JOB_ID"' USR1
wait $training
