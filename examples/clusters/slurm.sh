#!/bin/bash
# A plan of two nodes with eight GPUs each on Slurm: `sbatch slurm.sh plan.yaml`.
# All nodes have the same environment, with `rlplan[execute]`, and see the folder of the run.
#SBATCH --job-name=rlplan
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=04:00:00
set -euo pipefail

plan=${1:?the file of a plan}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 20000))

# Only who has this token reaches the cluster of this job.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN

srun --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" \
    --num-gpus="$SLURM_GPUS_ON_NODE" --include-dashboard=false --block &
sleep 20
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    others=$((SLURM_JOB_NUM_NODES - 1))
    srun --nodes="$others" --ntasks="$others" --exclude="$head" \
        ray start --address="$address:$port" --num-gpus="$SLURM_GPUS_ON_NODE" --block &
fi

# The first node holds the driver; the others may come a little later.
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    rlplan execute "$plan" --address "$address:$port" --node-wait 300 \
    --out "runs/$SLURM_JOB_ID" --iterations 100 --checkpoint-every 10
